//! The current path of a walk over a tree. It is as long as the tree is deep, so it is stored once, not per level.

/// A path as a stack of names.
#[derive(Debug, Default)]
pub(crate) struct PathStack {
    path: Vec<u8>,
    /// The length of the path before each name.
    lengths: Vec<usize>,
}

impl PathStack {
    /// A path that begins with `start`.
    pub(crate) fn new(start: &[u8]) -> Self {
        Self { path: start.to_vec(), lengths: Vec::new() }
    }

    /// The complete path.
    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    /// Appends a name.
    pub(crate) fn enter(&mut self, name: &[u8]) {
        self.lengths.push(self.path.len());
        if !self.path.is_empty() && !self.path.ends_with(b"/") {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
    }

    /// Removes the last name.
    pub(crate) fn leave(&mut self) {
        if let Some(length) = self.lengths.pop() {
            self.path.truncate(length);
        }
    }
}

/// Directories that are referred to later: each has its own name only, and the index of its parent.
#[derive(Debug, Default)]
pub(crate) struct Folders(Vec<(usize, Vec<u8>)>);

impl Folders {
    /// The index of the directory in which the walk begins.
    pub(crate) const START: usize = 0;

    /// Adds a directory to its parent; returns the index.
    pub(crate) fn add(&mut self, parent: usize, name: &[u8]) -> usize {
        self.0.push((parent, name.to_vec()));
        self.0.len()
    }

    /// The names on the path to a directory from the start.
    pub(crate) fn names(&self, folder: usize) -> Vec<&[u8]> {
        let mut names = Vec::new();
        let mut at = folder;
        while let Some((parent, name)) = at.checked_sub(1).and_then(|index| self.0.get(index)) {
            names.push(&name[..]);
            at = *parent;
        }
        names.reverse();
        names
    }

    /// The path of these names.
    pub(crate) fn path(&self, folder: usize) -> Vec<u8> {
        let mut stack = PathStack::default();
        self.names(folder).iter().for_each(|name| stack.enter(name));
        stack.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_put_on_and_taken_off() {
        for (start, first) in [("", "a"), ("/", "/a"), ("x", "x/a"), ("x/", "x/a")] {
            let mut stack = PathStack::new(start.as_bytes());
            stack.enter(b"a");
            assert_eq!(stack.path(), first.as_bytes());
            stack.enter(b"b");
            assert_eq!(stack.path(), [first.as_bytes(), b"/b"].concat());
            stack.leave();
            assert_eq!(stack.path(), first.as_bytes());
            stack.leave();
            stack.leave();
            assert_eq!(stack.path(), start.as_bytes());
        }
    }

    #[test]
    fn folders_are_found_by_their_names() {
        let mut folders = Folders::default();
        let a = folders.add(Folders::START, b"a");
        let b = folders.add(a, b"b");
        let other = folders.add(a, b"other");
        assert_eq!(folders.names(Folders::START), [b""; 0]);
        assert_eq!(folders.names(b), [b"a", b"b"]);
        assert_eq!(folders.names(other), [&b"a"[..], b"other"]);
        assert_eq!((folders.path(Folders::START), folders.path(other)), (Vec::new(), b"a/other".to_vec()));
        let root = folders.add(Folders::START, b"/");
        let below = folders.add(root, b"below");
        assert_eq!((folders.path(root), folders.path(below)), (b"/".to_vec(), b"/below".to_vec()));
    }
}
