//! The program's memory allocator.
//!
//! A server runs for months, so memory that was needed once, for example while many files were created, must return to
//! the system. The allocator of the C library returns only the end of each heap: one block in use pins everything
//! before it. jemalloc returns every unused page. The number of its arenas, and the time after which it returns pages,
//! are set at build time, in `.cargo/config.toml`.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    /// Anonymous resident memory of this process, in KiB.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("the process's status");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("the resident memory");
        line.split_whitespace().next().expect("a number").parse().expect("a number")
    }

    #[test]
    fn memory_goes_back_to_the_system_though_some_of_it_is_in_use() {
        const BLOCK: usize = 4096;
        const BLOCKS: usize = 16384;
        let before = resident();
        let fill = || (0..BLOCKS).map(|n| vec![n as u8 | 1; BLOCK]).collect::<Vec<_>>();
        let threads = [thread::spawn(fill), thread::spawn(fill)];
        let mut all = threads.map(|thread| thread.join().expect("no panic"));
        let full = resident() - before;
        assert!(full >= all.len() * BLOCKS * BLOCK / 1024, "{full} KiB");
        for blocks in &mut all {
            let mut n = 0;
            blocks.retain(|_| {
                n += 1;
                n % 64 == 0
            });
        }
        let end = Instant::now() + Duration::from_secs(60);
        while resident() > before + full / 4 {
            assert!(Instant::now() < end, "{} KiB of {full} are resident", resident() - before);
            thread::sleep(Duration::from_millis(50));
        }
        assert!(all.iter().flatten().all(|block| block.len() == BLOCK));
    }
}
