//! Replaces the module of the program that formats numbers.

pub(crate) fn human(bytes: u64) -> String {
    bytes.to_string()
}

pub(crate) fn counted(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}
