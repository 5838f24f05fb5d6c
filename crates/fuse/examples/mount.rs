//! Mounts a volume and serves it until it is unmounted, or until SIGTERM or SIGINT: `mount IMAGE DIRECTORY OPTIONS`.
//! Prints "mounted" when programs can use it, and problems to standard error.
#![forbid(unsafe_code)]

use extant_fuse::MountOptions;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = std::env::args().collect();
    let [_, image, dir, list] = &args[..] else { return Err("usage: mount IMAGE DIRECTORY OPTIONS".into()) };
    let mut options = MountOptions::parse(&[list])?;
    options.mount.device = Some(image.into());
    let access =
        blockdev::OpenOptions { write: !options.mount.read_only, exclusive: true, ..blockdev::OpenOptions::default() };
    let device = Arc::new(blockdev::FileDevice::open(image, access)?);
    let opened = options.volume_options().into_iter().map(|how| fs::Volume::open(Arc::clone(&device) as _, &how));
    let volume = opened.reduce(|first, next| first.or(next)).ok_or("no way to open the volume")??;
    let session = extant_fuse::mount(Arc::new(volume), dir.as_ref(), &options, |problem| eprintln!("{problem}"))?;

    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT])?;
    let unmounter = session.unmounter();
    std::thread::spawn(move || {
        if signals.forever().next().is_some()
            && let Err(e) = unmounter.unmount()
        {
            eprintln!("{e}");
        }
    });
    println!("mounted");
    session.run()?;
    Ok(())
}
