//! The search for a group with a long enough run: a tree of maxima over a bound for each group.

/// The number of children of a node: as many numbers as fit into a cache line.
const FAN: usize = 16;

/// An upper bound of the run length of each group, and above these levels of the maximum of each [`FAN`], up to one.
///
/// The caller sets the bounds: one that is too large costs an unnecessary search of a group, one that is too small
/// hides its space. The cost of all functions but [`Longest::new`] is the height of the tree: 4 levels for 65 536
/// groups.
#[derive(Debug, Clone)]
pub struct Longest {
    /// The bounds, then for each higher level the maximum of each [`FAN`]; the last level has one number.
    levels: Vec<Box<[u32]>>,
}

impl From<Vec<u32>> for Longest {
    /// Creates the tree from the bounds of all groups.
    fn from(bounds: Vec<u32>) -> Self {
        let mut levels: Vec<Box<[u32]>> = vec![bounds.into()];
        while let Some(below) = levels.last().filter(|level| level.len() > 1) {
            levels.push(below.chunks(FAN).map(|children| children.iter().copied().max().unwrap_or(0)).collect());
        }
        Self { levels }
    }
}

impl Longest {
    /// Creates the tree with the same bound for each of `groups` groups.
    #[must_use]
    pub fn new(groups: u32, bound: u32) -> Self {
        Self::from(vec![bound; groups as usize])
    }

    /// The number of groups.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.level(0).len() as u32
    }

    /// A group's bound; 0 for a group that does not exist.
    #[must_use]
    pub fn bound(&self, group: u32) -> u32 {
        self.level(0).get(group as usize).copied().unwrap_or(0)
    }

    /// The largest of all bounds.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.levels.last().and_then(|top| top.first()).copied().unwrap_or(0)
    }

    /// Memory on the heap in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        let levels = self.levels.iter().map(|level| size_of_val(&**level)).sum::<usize>();
        levels + self.levels.capacity() * size_of::<Box<[u32]>>()
    }

    /// Changes a group's bound; does nothing for a group that does not exist.
    pub fn set(&mut self, group: u32, bound: u32) {
        let mut at = group as usize;
        let mut new = bound;
        let mut below: Option<&[u32]> = None;
        for level in &mut self.levels {
            if let Some(children) = below {
                new = children.iter().copied().max().unwrap_or(0);
            }
            let Some(there) = level.get_mut(at) else { return };
            if *there == new {
                return;
            }
            *there = new;
            let first = at / FAN * FAN;
            at /= FAN;
            let end = (first + FAN).min(level.len());
            below = level.get(first..end);
        }
    }

    /// Raises a group's bound to at least `bound`.
    pub fn raise(&mut self, group: u32, bound: u32) {
        let mut at = group as usize;
        for level in &mut self.levels {
            match level.get_mut(at) {
                Some(there) if *there < bound => *there = bound,
                _ => return,
            }
            at /= FAN;
        }
    }

    /// The first group in a range whose bound is at least `least`.
    #[must_use]
    pub fn next_in(&self, range: std::ops::Range<u32>, least: u32) -> Option<u32> {
        let mut at = range.start as usize;
        let mut height = 0;
        // up, as long as all following nodes under this one are too small
        loop {
            let level = self.level(height);
            let end = (at / FAN * FAN + FAN).min(level.len());
            let found = level.get(at..end).and_then(|rest| rest.iter().position(|bound| *bound >= least));
            if let Some(n) = found {
                at += n;
                break;
            }
            if end >= level.len() {
                return None;
            }
            (at, height) = (end / FAN, height + 1);
        }
        // and down to the first that is large enough
        while height > 0 {
            height -= 1;
            let level = self.level(height);
            let children = level.get(at * FAN..(at * FAN + FAN).min(level.len()))?;
            at = at * FAN + children.iter().position(|bound| *bound >= least)?;
        }
        Some(at as u32).filter(|group| *group < range.end)
    }

    /// The first group from `goal` on, and then before it, whose bound is at least `least`.
    #[must_use]
    pub fn next_from(&self, goal: u32, least: u32) -> Option<u32> {
        if self.largest() < least {
            return None;
        }
        self.next_in(goal..u32::MAX, least).or_else(|| self.next_in(0..goal, least))
    }

    fn level(&self, height: usize) -> &[u32] {
        self.levels.get(height).map_or(&[], |level| level)
    }
}
