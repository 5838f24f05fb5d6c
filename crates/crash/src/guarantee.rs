//! The guarantees of each mode, as predicates on the content of a volume after a crash.
//!
//! A mode has a row of [`GUARANTEES`]: how far the order of operations is preserved, the possible content of files, the
//! scope of fsync, and the recovery. [`verify`] uses the columns, never the modes. [`Guarantee::columns`] describes
//! them in words: they are the table in README.md, cell by cell.
//!
//! 1. The whole tree at one moment ([`Order::Prefix`]): names, attributes and sizes are those after some operation, at
//!    least as new as the durable state.
//! 2. The names at one moment ([`Order::Names`]): directories and entries are those after some operation, at least as
//!    new as the durable state, except that new files may be missing; each file has one of its versions since.
//! 3. Each object separately ([`Order::PerObject`]): after the full check, everything durable and not changed since is
//!    present and complete. It is present under those of its names that are durable with their directories and were not
//!    changed since, unless a write was torn in a changed directory, and somewhere (`lost+found`) if there is no such
//!    name. There is no guarantee for anything else.
//! 4. A volume that is marked clean is compared with both, and all files have their lengths of that moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use fs::{Consistency, DataMode, MODES, Mode};

use crate::history::{DurableSet, History};
use crate::model::{Body, Id, Node, State};

/// The part of the order of operations that survives a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The tree is that after some operation.
    Prefix,
    /// Directories and their entries are those after some operation; each file may have any version, and a new one may
    /// be missing with all of its names.
    Names,
    /// Each file and directory may have any version, or be damaged, unless it is durable.
    PerObject,
}

/// The possible bytes of a file that are not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// Those of the same moment as the tree; a part of the next write may be present.
    Exact,
    /// At each position those of some version of that file, or zeros where one had a hole. Appended bytes may be
    /// missing, unless the file has replaced another.
    OldOrNew,
    /// Any bytes where versions differ; sizes as in `OldOrNew`.
    Any,
}

/// The scope of a returned fsync(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The file or directory alone.
    Node,
    /// The file, and every change of names, attributes and sizes before its own last one.
    EarlierMetadata,
    /// Everything.
    Volume,
}

/// The recovery required before the volume is used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// A full check that repairs.
    FullCheck,
    /// A full check, except for a volume marked clean, which needs none.
    CheckUnlessClean,
    /// A mount; the checker must find nothing afterwards.
    Mount,
}

/// The guarantee of one mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guarantee {
    /// The mode.
    pub mode: Mode,
    /// The part of the order of operations that survives a crash.
    pub order: Order,
    /// The possible bytes of a file that are not durable.
    pub data: Data,
    /// The scope of fsync.
    pub fsync: Scope,
    /// The recovery of the volume.
    pub recovery: Recovery,
}

/// The guarantees of all modes.
pub static GUARANTEES: LazyLock<[Guarantee; MODES.len()]> = LazyLock::new(|| MODES.map(guarantee));

fn guarantee(mode: Mode) -> Guarantee {
    let (order, data, fsync, recovery) = match mode.consistency {
        Consistency::None => (Order::PerObject, Data::Any, Scope::Node, Recovery::FullCheck),
        Consistency::DirtyBit => (Order::PerObject, Data::OldOrNew, Scope::Node, Recovery::CheckUnlessClean),
        Consistency::Linked => (Order::Names, Data::OldOrNew, Scope::EarlierMetadata, Recovery::Mount),
        Consistency::Journal | Consistency::Snapshot => {
            let data = match mode.data {
                DataMode::Ordered | DataMode::NewBlocks => Data::OldOrNew,
                DataMode::Journal => Data::Exact,
                DataMode::Writeback => Data::Any,
            };
            (Order::Prefix, data, Scope::EarlierMetadata, Recovery::Mount)
        }
    };
    Guarantee { mode, order, data, fsync, recovery }
}

impl Guarantee {
    /// The guarantee of the mode of that name.
    #[must_use]
    pub fn of(mode: &str) -> Option<&'static Self> {
        GUARANTEES.iter().find(|guarantee| guarantee.mode.name == mode)
    }

    /// The guarantee in words, as the columns of the table in README.md: names, sizes and attributes; data that was not
    /// synced; fsync; recovery.
    #[must_use]
    pub fn columns(&self) -> [&'static str; 4] {
        [
            match self.order {
                Order::Prefix => {
                    "the state between two operations, at most two commit intervals (10 s) before the crash"
                }
                Order::Names => {
                    "names and directories: the state between two operations, at most two commit intervals \
                     (10 s) before the crash, but new files may be missing; size and attributes of each file: old or \
                     new"
                }
                Order::PerObject => {
                    "each file separately: intact if it was synced and not changed since, else old, new or lost"
                }
            },
            match (self.order, self.data) {
                (Order::PerObject, _) => "anything",
                (_, Data::Exact) => "the state of the same moment; a part of the next write may be present",
                (_, Data::OldOrNew) => {
                    "each byte old or new; appended bytes may be missing, unless the file was renamed over another \
                     after that"
                }
                (_, Data::Any) => {
                    "any bytes; appended bytes may be missing, unless the file was renamed over another after that"
                }
            },
            match self.fsync {
                Scope::Node => {
                    "the file: its data, size and attributes; for a directory, its entries; the name of a file requires \
                     an fsync of its directory"
                }
                Scope::EarlierMetadata => {
                    "the file: its data, size, attributes and names; and every change of other names, attributes and \
                     sizes that came before the file's last change, with the exceptions on the left"
                }
                Scope::Volume => "everything",
            },
            match self.recovery {
                Recovery::FullCheck => "a full check (`extant check -fy`)",
                Recovery::CheckUnlessClean => {
                    "a full check (`extant check -fy`), unless the volume is marked clean: then the state of one \
                     moment, with data old or new, and nothing missing"
                }
                Recovery::Mount => "a mount; a check then finds no errors",
            },
        ]
    }
}

/// The progress of the operations at the moment of the crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Moment {
    /// Number of operations that had returned.
    pub returned: usize,
    /// Number of operations that had begun.
    pub begun: usize,
    /// Whether a write had partly reached the storage.
    pub torn: bool,
}

/// Compares a recovered volume with the guarantee; `clean`: it was marked clean, and needed no recovery.
///
/// # Errors
/// A description of the broken guarantee.
pub fn verify(
    guarantee: &Guarantee,
    history: &History,
    moment: Moment,
    clean: bool,
    observed: &State,
) -> Result<(), String> {
    let durable = history.durable(moment.returned, guarantee.fsync);
    match guarantee.order {
        Order::Prefix => prefix(guarantee.data, false, history, moment, &durable, observed),
        Order::Names => names(guarantee.data, history, moment, &durable, observed),
        Order::PerObject => {
            per_object(history, moment, &durable, observed)?;
            // no data may be delayed in memory while a volume is marked clean
            if clean { prefix(guarantee.data, true, history, moment, &durable, observed) } else { Ok(()) }
        }
    }
}

/// Checks that the tree is that of one moment; with `whole`, that appended bytes are present as well.
fn prefix(
    data: Data,
    whole: bool,
    history: &History,
    moment: Moment,
    durable: &DurableSet,
    observed: &State,
) -> Result<(), String> {
    let mut first = None;
    for number in (durable.tree..=moment.begun).rev() {
        let model = history.outside(number);
        let era = history.era(number);
        let newest = moment.begun.min(era.end.saturating_sub(1));
        let bytes = |id: Id, model: &Node, observed: &Node| {
            let Some((model, observed)) = model.data().zip(observed.data()) else { return Ok(()) };
            if data == Data::Exact && number < moment.begun && history.is_written_in_part(id, number, observed) {
                return Ok(());
            }
            // a file that replaces another does so with its content
            let settled = durable.node(id).max(history.replaced_by(id, number)).max(era.start);
            let oldest = if whole || data == Data::Exact { number } else { settled.min(number) };
            if !history.sizes(id, oldest, number).contains(&observed.len()) {
                return Err(format!("{} bytes instead of {}", observed.len(), model.len()));
            }
            if data == Data::Exact && model != observed {
                return Err(differs(model, observed));
            }
            allowed_bytes(data, history, id, settled, newest, observed)
        };
        match same_tree(model, observed, bytes).and_then(|()| same_snapshots(model, observed)) {
            Ok(()) => return Ok(()),
            Err(why) => {
                // a difference in bytes alone is the most informative
                let alike = same_tree(model, observed, |_, _, _| Ok(())).is_ok();
                if first.as_ref().is_none_or(|(_, _, before)| alike && !before) {
                    first = Some((number, why, alike));
                }
            }
        }
    }
    let (newest, why, alike) = first.unwrap_or((moment.begun, "no state is allowed".into(), false));
    let oldest = durable.tree;
    let mut text = format!("the tree is not that of one moment: as after {}, but {why}", history.after(newest));
    if oldest < newest && !alike {
        // every state in between was tried as well; the ends are the most informative
        if let Err(why) = same_tree(history.outside(oldest), observed, |_, _, _| Ok(())) {
            let _ = write!(text, "; as after {}, but {why}", history.after(oldest));
        }
    }
    Err(text)
}

/// Checks that names and directories are those of one moment, and each file has one of its versions.
fn names(data: Data, history: &History, moment: Moment, durable: &DurableSet, observed: &State) -> Result<(), String> {
    let mut first = None;
    for number in (durable.tree..=moment.begun).rev() {
        let mut in_a_file = false;
        let version = |id: Id, file: &Node| {
            let fits = one_version(data, history, moment, durable, (id, number), file);
            in_a_file |= fits.is_err();
            fits
        };
        match same_names(history, durable, number, observed, version) {
            Ok(()) => return Ok(()),
            Err(why) => {
                // with matching names, a difference in a file is the most informative
                if first.as_ref().is_none_or(|(_, _, before)| in_a_file && !before) {
                    first = Some((number, why, in_a_file));
                }
            }
        }
    }
    let (number, why, _) = first.unwrap_or((moment.begun, "no state is allowed".into(), false));
    Err(format!("the names are not those of one moment: as after {}, but {why}", history.after(number)))
}

/// Checks that names and directories are those of state `number`; `version` compares everything except directories.
fn same_names(
    history: &History,
    durable: &DurableSet,
    number: usize,
    observed: &State,
    mut version: impl FnMut(Id, &Node) -> Result<(), String>,
) -> Result<(), String> {
    let (model, oldest) = (history.outside(number), history.outside(durable.tree));
    // a file that replaces another must be present, so that the other one is not lost without it
    let may_lack = |id: Id| {
        let is_dir = model.node(id).is_some_and(|node| node.entries().is_some());
        !is_dir && oldest.node(id).is_none() && history.replaced_by(id, number) == 0
    };
    let mut ids = BTreeMap::from([(observed.root, model.root)]);
    let mut inodes = BTreeMap::from([(model.root, observed.root)]);
    let mut lacking = BTreeSet::new();
    let mut queue = vec![(String::from("/"), model.root, observed.root)];
    while let Some((path, id, ino)) = queue.pop() {
        let (Some(a), Some(b)) = (model.node(id), observed.node(ino)) else {
            return Err(format!("{path} names no file"));
        };
        let (Some(left), Some(right)) = (a.entries(), b.entries()) else {
            version(id, b).map_err(|why| format!("{path}: {why}"))?;
            continue;
        };
        same_node(a, b).map_err(|why| format!("{path}: {why}"))?;
        for (name, &id) in left {
            if !right.contains_key(name) {
                if !may_lack(id) {
                    return Err(format!("{path} has no {name}"));
                }
                lacking.insert(id);
            }
        }
        for (name, &ino) in right {
            let Some(&id) = left.get(name) else { return Err(format!("{path} has {name}")) };
            match (ids.insert(ino, id), inodes.insert(id, ino)) {
                (None, None) => {
                    queue.push((format!("{path}{name}{}", if b.entries().is_some() { "/" } else { "" }), id, ino));
                }
                (Some(before), Some(at)) if before == id && at == ino => {}
                (Some(_), _) => return Err(format!("{path}{name} is another file's name as well")),
                (None, Some(_)) => return Err("names of one file have become names of two".into()),
            }
        }
    }
    match lacking.iter().find(|id| inodes.contains_key(id)) {
        Some(_) => Err("a new file has some of its names".into()),
        None => Ok(()),
    }
}

/// Checks that a file has one of its versions at least as new as the durable one, and not older than its replacement of
/// another file in the names of state `number`.
fn one_version(
    data: Data,
    history: &History,
    moment: Moment,
    durable: &DurableSet,
    (id, number): (Id, usize),
    observed: &Node,
) -> Result<(), String> {
    let settled = durable.node(id).max(history.replaced_by(id, number));
    let mut wrong = None;
    for at in (durable.tree.max(settled)..=moment.begun).rev() {
        let Some(version) = history.outside(at).node(id) else { continue };
        // the checker counts its names
        let version = Node { links: observed.links, ..version.as_ref().clone() };
        let fits = same_node(&version, observed).and_then(|()| match (version.data(), observed.data()) {
            (Some(is), Some(left)) if !history.sizes(id, settled.min(at), at).contains(&left.len()) => {
                Err(format!("{} bytes instead of {}", left.len(), is.len()))
            }
            (Some(_), Some(left)) => allowed_bytes(data, history, id, settled, moment.begun, left),
            _ => Ok(()),
        });
        match fits {
            Ok(()) => return Ok(()),
            Err(why) => wrong = wrong.or(Some(why)),
        }
    }
    Err(wrong.unwrap_or_else(|| "it did not exist any more".into()))
}

/// Checks that `observed` has at each position the bytes of some version of the file in states `from..=to`.
fn allowed_bytes(data: Data, history: &History, id: Id, from: usize, to: usize, observed: &[u8]) -> Result<(), String> {
    let versions: Vec<&[u8]> =
        history.versions(id, from, to).into_iter().filter_map(|v| Some(v?.data()?.as_slice())).collect();
    if versions.contains(&observed) {
        return Ok(());
    }
    // a truncated file reads as zeros up to the end of its last block before the new size is visible
    let mut longest = 0;
    let cut = versions.iter().filter_map(|version| {
        let shorter = version.len() < longest;
        longest = longest.max(version.len());
        shorter.then_some(version.len())
    });
    let cut = cut.min().unwrap_or(usize::MAX);
    for (position, byte) in observed.iter().enumerate() {
        if *byte == 0 && position >= cut && data != Data::Exact {
            continue;
        }
        let mut at = versions.iter().map(|version| version.get(position));
        let fine = match data {
            Data::Any => {
                versions.iter().any(|v| v.get(position) != versions[0].get(position)) || at.any(|b| b == Some(byte))
            }
            Data::Exact | Data::OldOrNew => at.any(|b| b == Some(byte)),
        };
        if !fine {
            return Err(format!("byte {position} is {byte:#04x}, which no version since {} had", history.after(from)));
        }
    }
    Ok(())
}

fn differs(model: &[u8], observed: &[u8]) -> String {
    let at = model.iter().zip(observed).position(|(a, b)| a != b).unwrap_or(0);
    format!("byte {at} is {:#04x} instead of {:#04x}", observed[at], model[at])
}

/// Compares two trees, except for the bytes of files, which `bytes` compares with the model's number of the file.
fn same_tree(
    model: &State,
    observed: &State,
    mut bytes: impl FnMut(Id, &Node, &Node) -> Result<(), String>,
) -> Result<(), String> {
    let mut pairs = BTreeMap::from([(observed.root, model.root)]);
    let mut queue = vec![(String::from("/"), model.root, observed.root)];
    while let Some((path, id, ino)) = queue.pop() {
        let (Some(a), Some(b)) = (model.node(id), observed.node(ino)) else {
            return Err(format!("{path} names no file"));
        };
        same_node(a, b).and_then(|()| bytes(id, a, b)).map_err(|why| format!("{path}: {why}"))?;
        let (Some(left), Some(right)) = (a.entries(), b.entries()) else { continue };
        if let Some(name) = left.keys().find(|name| !right.contains_key(*name)) {
            return Err(format!("{path} has no {name}"));
        }
        for (name, &ino) in right {
            let Some(&id) = left.get(name) else { return Err(format!("{path} has {name}")) };
            match pairs.insert(ino, id) {
                None => queue.push((format!("{path}{name}{}", if b.entries().is_some() { "/" } else { "" }), id, ino)),
                Some(before) if before == id => {}
                Some(_) => return Err(format!("{path}{name} is another file's name as well")),
            }
        }
    }
    let mut others: Vec<Id> = pairs.values().copied().collect();
    others.sort_unstable();
    if others.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err("names of one file have become names of two".into());
    }
    Ok(())
}

/// Compares two nodes, except for the bytes of files and the entries of directories.
fn same_node(model: &Node, observed: &Node) -> Result<(), String> {
    let kind = |node: &Node| match &node.body {
        Body::File(_) => "a file",
        Body::Dir(_) => "a directory",
        Body::Symlink(_) => "a symbolic link",
        Body::Other(word) => word,
    };
    if kind(model) != kind(observed) {
        return Err(format!("{} instead of {}", kind(observed), kind(model)));
    }
    if let (Body::Symlink(a), Body::Symlink(b)) = (&model.body, &observed.body)
        && a != b
    {
        return Err(format!("its target is `{b}` instead of `{a}`"));
    }
    if model.mode != observed.mode {
        return Err(format!("mode {:o} instead of {:o}", observed.mode, model.mode));
    }
    if model.links != observed.links {
        return Err(format!("{} links instead of {}", observed.links, model.links));
    }
    if model.xattrs != observed.xattrs {
        let names = |node: &Node| node.xattrs.iter().map(|(n, v)| format!("{n} ({})", v.len())).collect::<Vec<_>>();
        return Err(format!("attributes {:?} instead of {:?}", names(observed), names(model)));
    }
    Ok(())
}

/// Checks that everything durable and not changed since is present.
fn per_object(history: &History, moment: Moment, durable: &DurableSet, observed: &State) -> Result<(), String> {
    let model = history.state(moment.begun);
    // a node with a single version since it was made durable
    let unchanged = |id: Id| match history.versions(id, durable.node(id), moment.begun)[..] {
        [Some(node)] => Some(node),
        _ => None,
    };
    // after a rename a file may have both names: then its link count is the number of names
    let names = |state: &State, id: Id| -> Vec<String> {
        state.paths().into_iter().filter(|(_, at)| *at == id).map(|(path, _)| path).collect()
    };
    let renamed = |id: Id| {
        let last = names(model, id);
        (durable.node(id)..moment.begun).any(|number| names(history.state(number), id) != last)
    };
    // an entry unchanged since its directory was made durable; a torn write may cost a changed directory any entry
    let entry_unchanged = |dir: Id, name: &str| {
        let versions = history.versions(dir, durable.node(dir), moment.begun);
        let entry = |node: &Option<&Arc<Node>>| node.and_then(|node| node.entries()?.get(name).copied());
        let first = versions.first().and_then(entry);
        first.is_some() && versions.iter().all(|v| entry(v) == first) && (versions.len() == 1 || !moment.torn)
    };
    let paths = model.paths();
    let whole = |path: &str| {
        let mut at = path;
        while !at.is_empty() {
            let (dir, name) = at.rsplit_once('/').unwrap_or(("", at));
            if !model.resolve(dir).is_ok_and(|dir| entry_unchanged(dir, name)) {
                return false;
            }
            at = dir;
        }
        true
    };
    for (path, id) in &paths {
        let Some(node) = unchanged(*id) else { continue };
        // the checker moves files that lost their name there
        if whole(path) && path != "lost+found" {
            let found = observed.resolve(path).ok().and_then(|ino| observed.node(ino));
            let Some(found) = found else { return Err(format!("/{path} is durable, but missing")) };
            // the content of a directory is compared by name; the checker recounts its links, and those of a file with
            // another name in a torn directory
            let recounted = node.entries().is_some() || moment.torn;
            let there = || observed.resolve(path).map_or(0, |ino| names(observed, ino).len() as u32);
            let recounted = recounted || found.links != node.links && found.links == there() && renamed(*id);
            let links = if recounted { node.links } else { found.links };
            let found = Node { links, ..found.as_ref().clone() };
            same_node(node, &found)
                .and_then(|()| if node.entries().is_some() { Ok(()) } else { same_content(node, &found) })
                .map_err(|why| format!("/{path}: {why}"))?;
        }
    }
    // a file that lost its name must be somewhere; one made durable without a name need not, and the checker removes
    // empty ones
    let needed = |node: &Node| node.links > 0 && node.entries().is_none() && node.data().is_none_or(|d| !d.is_empty());
    for (id, _) in model.nodes.iter().filter(|(_, node)| needed(node)) {
        let Some(node) = unchanged(*id) else { continue };
        let alike = |other: &Node| {
            let other = Node { links: node.links, ..other.clone() };
            same_node(node, &other).and_then(|()| same_content(node, &other)).is_ok()
        };
        if !observed.nodes.values().any(|other| alike(other)) {
            let path = paths.iter().find(|(_, at)| at == id).map_or("a file", |(path, _)| path);
            return Err(format!("{path} is durable, but its content is missing"));
        }
    }
    Ok(())
}

fn same_content(model: &Node, observed: &Node) -> Result<(), String> {
    match (&model.body, &observed.body) {
        (Body::File(a), Body::File(b)) if a.len() != b.len() => {
            Err(format!("{} bytes instead of {}", b.len(), a.len()))
        }
        (Body::File(a), Body::File(b)) if a != b => Err(differs(a, b)),
        (Body::Dir(a), Body::Dir(b)) => match a.keys().find(|name| !b.contains_key(*name)) {
            Some(name) => Err(format!("entry {name} is missing")),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Compares the content of a volume with the model, exactly.
///
/// # Errors
/// The first difference, as text.
pub fn same(model: &State, observed: &State) -> Result<(), String> {
    same_tree(model, observed, |_, a, b| same_content(a, b))?;
    same_snapshots(model, observed)
}

/// Compares the snapshots: each must have the exact content at its creation.
fn same_snapshots(model: &State, observed: &State) -> Result<(), String> {
    if let Some(name) = model.snapshots.keys().find(|name| !observed.snapshots.contains_key(*name)) {
        return Err(format!("the snapshot {name} is missing"));
    }
    for (name, observed) in &observed.snapshots {
        let Some(model) = model.snapshots.get(name) else { return Err(format!("unexpected snapshot {name}")) };
        let same = same_tree(model, observed, |_, a, b| same_content(a, b));
        same.map_err(|why| format!("in the snapshot {name}: {why}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Workload;

    fn state(text: &str) -> State {
        let mut state = State::empty();
        for op in &text.parse::<Workload>().unwrap().ops {
            state.apply(op, 1024).unwrap();
        }
        state
    }

    /// Verifies a volume with the content created by `left`, after all of `done` returned.
    fn verified(mode: &str, done: &str, clean: bool, left: &str) -> Result<(), String> {
        verified_at(mode, done, clean, false, left)
    }

    fn verified_torn(mode: &str, done: &str, left: &str) -> Result<(), String> {
        verified_at(mode, done, false, true, left)
    }

    fn verified_at(mode: &str, done: &str, clean: bool, torn: bool, left: &str) -> Result<(), String> {
        let workload: Workload = done.parse().unwrap();
        let mut first = State::empty();
        workload.setup.iter().for_each(|op| first.apply(op, 1024).unwrap());
        let mut history = History::new(first, 1024);
        workload.ops.iter().for_each(|op| history.push(op).unwrap());
        let moment = Moment { returned: history.len(), begun: history.len(), torn };
        verify(Guarantee::of(mode).unwrap(), &history, moment, clean, &state(left))
    }

    #[track_caller]
    fn legal(mode: &str, done: &str, left: &str) {
        verified(mode, done, false, left).unwrap();
    }

    #[track_caller]
    fn broken(mode: &str, done: &str, left: &str, why: &str) {
        let said = verified(mode, done, false, left).unwrap_err();
        assert!(said.contains(why), "{said}");
    }

    #[test]
    fn a_journal_preserves_the_order() {
        let done = "create a; create b; create c";
        legal("journal", done, "");
        legal("journal", done, "create a; create b");
        broken("journal", done, "create b", "/ has no a");
        broken("journal", "create a; create b; fsync b; create c", "create a", "/ has no b");
        legal("journal", "create a; fsync a; create b", "create a");
        broken("journal", "create a; sync; rename a b", "create a; link a b", "has a");
        broken("journal", "create a; sync; rename a b", "", "/ has no");
        broken("journal", "mkdir a; create a/b; sync", "mkdir a; symlink x a/b", "a symbolic link instead of a file");
        broken("journal", "mkdir a; sync", "mkdir a; chmod a 700", "mode 700 instead of 755");
        broken("journal", "create a; link a b; sync", "create a; create b", "1 links instead of 2");
        broken("journal", "create a; setxattr a user.x 5 =1; sync", "create a; setxattr a user.x 5 =2", "attributes");
        broken("journal", "symlink x l; sync", "symlink y l", "its target is `y`");
    }

    #[test]
    fn bytes_are_old_or_new() {
        let done = "create f; append f 2000 =1; sync; write f 0 1000 =2; write f 1000 500 =3";
        let old = "create f; append f 2000 =1;";
        legal("journal", done, &format!("{old} write f 1000 500 =3"));
        legal("journal", done, &format!("{old} write f 100 5 =2"));
        broken("journal", done, &format!("{old} write f 100 5 =9"), "byte 100 is");
        legal("journal-writeback", done, &format!("{old} write f 100 5 =9"));
        broken("journal-writeback", done, &format!("{old} write f 1600 5 =9"), "byte 1600 is");
        legal("journal-data", done, &format!("{old} write f 0 1000 =2"));
        broken("journal-data", done, &format!("{old} write f 1000 500 =3"), "byte");
        broken("journal", done, "create f; append f 1000 =1", "1000 bytes instead of 2000");
        // appended data may be missing while later changes are present, unless the file was then renamed over another
        let grown = "create a; sync; create f; append f 100 =1; mkdir d";
        legal("journal", grown, "create a; create f; mkdir d");
        broken("journal-data", grown, "create a; create f; mkdir d", "0 bytes instead of 100");
        let grown = "create a; sync; create f; append f 100 =1; rename f a; mkdir d";
        broken("journal", grown, "create a; mkdir d", "0 bytes instead of 100");
        broken(
            "journal",
            "create f; append f 100 =1; sync; truncate f 9; mkdir d",
            "create f; append f 100 =1; mkdir d",
            "100 bytes",
        );
        // zeros after the end of a truncated file, before the truncation is visible
        let cut = "create f; append f 2000 =1; sync; truncate f 1500";
        legal("journal", cut, &format!("{old} truncate f 1500; truncate f 2000"));
        broken("journal", cut, &format!("{old} truncate f 1400; truncate f 2000"), "2000 bytes instead of 1500");
        let synced = format!("{done}; fdatasync f");
        broken("journal", &synced, &format!("{old} write f 1000 500 =3"), "byte 0 is");
        // the size and the bytes of an append appear together: no zeros
        broken("journal", "create f; append f 100 =1", "create f; truncate f 100", "byte 0 is 0x00");
    }

    #[test]
    fn a_raw_mode_preserves_what_is_durable_and_was_left_alone() {
        let done = "mkdir d; create d/f; append d/f 9 =1 | create g; append g 9 =2; fsync g; create h";
        legal("none", done, "mkdir d; create d/f; append d/f 9 =1; create x; append x 9 =2");
        broken("none", done, "mkdir d; create d/f; append d/f 9 =1", "g is durable, but its content is missing");
        broken("none", done, "create d; append d 9 =1; create g; append g 9 =2", "/d: a file instead of a directory");
        let synced = "create g; fsync g; fsync .";
        broken("none", synced, "create x", "/g is durable, but missing");
        legal("none", &format!("{synced}; unlink g"), "");
        legal("none", "create a; create b; create c", "create c");
        // the checker may remove a changed file, and its name with it
        legal("none", "create f; append f 9 =1; sync; append f 9000 =2", "");
        // during a rename a file may have both names; its links are counted
        let renamed = "mkdir d; create d/f; link d/f g; fsync g; fsync .; rename d/f h";
        legal("none", renamed, "mkdir d; create d/f; link d/f g; link g h");
        broken(
            "none",
            &renamed.replace("rename d/f h", "create x"),
            "mkdir d; create d/f; link d/f g; link g h",
            "3 links",
        );
        // another name in the same directory does not affect this one, but a torn block may
        broken("none", &format!("{synced}; create h"), "create h", "g is durable, but missing");
        assert!(verified_torn("none", &format!("{synced}; create h"), "create h").is_ok());
    }

    #[test]
    fn linked_writes_preserve_the_order_of_names() {
        let done = "create a; append a 9 =1; sync; create b; append b 9 =2; rename a c; create d";
        legal("linked", done, "create a; append a 9 =1");
        legal("linked", done, "create c; append c 9 =1");
        legal("linked", done, "create c; append c 9 =1; create d");
        legal("linked", done, "create c; append c 9 =1; create b");
        broken("linked", done, "create b; append b 9 =2", "/ has no c");
        broken("linked", done, "create a; append a 9 =1; link a c", "/ has a");
        broken("linked", done, "create a; append a 9 =1; create d", "/ has no c");
        broken("linked", done, "create a; append a 9 =2", "byte 0 is");
        broken("linked", "create a; sync; mkdir d; create d/f; sync", "create a; mkdir d", "/d/ has no f");
        broken("linked", "create a; sync; create b; mkdir d", "create a; create d", "2 links instead of 3");
        // a new file does not count as removed
        let done = "mkdir d; fsync d; rmdir d; create b; mkdir e";
        legal("linked", done, "mkdir e");
        broken("linked", done, "mkdir d; mkdir e", "4 links instead of 3");
        // over another file: the old or the new, complete
        let done = "create a; append a 9 =1; sync; create b; append b 9 =2; rename b a";
        legal("linked", done, "create a; append a 9 =1");
        legal("linked", done, "create a; append a 9 =2");
        broken("linked", done, "", "/ has no a");
        broken("linked", done, "create a", "0 bytes instead of 9");
        // attributes and size belong to one version, not older than the one that fsync of another file made durable
        let done = "create a; append a 9 =1; sync; chmod a 600; truncate a 4; create b; fsync b";
        legal("linked", done, "create a; append a 4 =1; chmod a 600; create b");
        broken("linked", done, "create a; append a 9 =1; create b", "mode 644 instead of 600");
        broken("linked", done, "create a; append a 9 =1; chmod a 600; create b", "9 bytes instead of 4");
        legal("linked", &format!("{done}; chmod a 700"), "create a; append a 4 =1; chmod a 600; create b");
        // a new file has all of its names or none
        let done = "mkdir d; sync; create d/a; link d/a b";
        legal("linked", done, "mkdir d");
        legal("linked", done, "mkdir d; create d/a; link d/a b");
        broken("linked", done, "mkdir d; create b", "a new file has some of its names");
        broken("linked", done, "mkdir d; create d/a; create b", "names of one file have become names of two");
        // data synced without a later change is complete
        let done = "create f; append f 2000 =1; sync; write f 0 1000 =2";
        legal("linked", done, "create f; append f 2000 =1; write f 0 100 =2");
        broken("linked", done, "create f; append f 2000 =1; write f 1500 5 =9", "byte 1500 is");
    }

    #[test]
    fn a_clean_state_is_a_guarantee_too() {
        verified("dirty-bit", "create a; create b", true, "create a").unwrap();
        let said = verified("dirty-bit", "create a; create b", true, "create b").unwrap_err();
        assert!(said.contains("/ has no a"), "{said}");
        verified("dirty-bit", "create a; create b", false, "create b").unwrap();
    }

    #[test]
    fn every_mode_is_one_row() {
        for guarantee in GUARANTEES.iter() {
            assert_eq!(Guarantee::of(guarantee.mode.name), Some(guarantee));
            // where the order of operations is preserved for names no check is needed
            assert_eq!(guarantee.recovery == Recovery::Mount, guarantee.order != Order::PerObject);
        }
        assert_eq!(Guarantee::of("magic"), None);
    }
}
