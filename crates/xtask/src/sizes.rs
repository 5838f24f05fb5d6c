//! Limits the length of source files.

use crate::report::Report;
use crate::workspace::Workspace;

/// Maximum number of lines; more fail.
const LIMIT: usize = 900;
/// Number of lines above which a note is printed.
const NOTE: usize = 800;

pub(crate) fn check(workspace: &Workspace) -> Result<Report, String> {
    let mut report = Report::default();
    for file in workspace.files.iter().filter(|file| file.extension().is_some_and(|e| e == "rs")) {
        let lines = workspace.text(file)?.map_or(0, |text| text.lines().count());
        classify(&file.display().to_string(), lines, &mut report);
    }
    Ok(report)
}

fn classify(file: &str, lines: usize, report: &mut Report) {
    if lines > LIMIT {
        report
            .findings
            .push(format!("{file} has {lines} lines, more than {LIMIT}: move one of its topics to a separate file."));
    } else if lines > NOTE {
        report.notes.push(format!("{file} has {lines} lines and will fail beyond {LIMIT}."));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_fail_and_nearly_long_ones_are_noted() {
        let classified = |lines| {
            let mut report = Report::default();
            classify("a.rs", lines, &mut report);
            (report.findings.len(), report.notes.len())
        };
        assert_eq!(classified(800), (0, 0));
        assert_eq!(classified(801), (0, 1));
        assert_eq!(classified(900), (0, 1));
        assert_eq!(classified(901), (1, 0));
    }
}
