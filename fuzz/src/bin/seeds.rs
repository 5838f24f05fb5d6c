//! Writes the seeds of every target: `seeds FOLDER` makes FOLDER/TARGET/0000 and so on.

#![forbid(unsafe_code)]

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: seeds FOLDER");
        std::process::exit(16);
    };
    for target in extant_fuzz::TARGETS {
        let folder = folder.join(target.name);
        std::fs::create_dir_all(&folder)?;
        let seeds = (target.seeds)();
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("{number:04}")), seed)?;
        }
        println!("{}: {} seeds", target.name, seeds.len());
    }
    Ok(())
}
