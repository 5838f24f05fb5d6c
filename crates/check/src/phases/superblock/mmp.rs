//! Multiple-mount protection.

use crate::options::Refusal;
use crate::problem::{Problem, Problems};
use crate::scan::Scanner;
use crate::table::Code;
use crate::volume::Volume;
use format::FsBlock;
use format::feature::Incompat;
use format::mmp::{self, DiskMmp, Use};
use zerocopy::FromBytes;

/// Checks that no other process is checking the volume. Mounts are not detected, as that requires waiting, and a
/// read-only check does no harm.
pub(super) fn check(scanner: &Scanner<'_>, volume: &Volume, problems: &Problems) -> Result<(), Refusal> {
    if !volume.features.incompat.contains(Incompat::MMP) {
        return Ok(());
    }
    let block = FsBlock(volume.disk.s_mmp_block.get());
    let first = u64::from(volume.geometry.first_data_block);
    let place = volume.offset(block.get()).filter(|_| block.get() > first);
    let Some(offset) = place else {
        problems.report(Problem::new(Code::MmpBlockOutOfRange).found(block.get()));
        return Ok(());
    };
    let mut bytes = [0; DiskMmp::SIZE];
    scanner.counters.count(offset, bytes.len() as u64);
    if let Err(error) = scanner.device.read(offset, &mut bytes) {
        problems.report(Problem::new(Code::ReadError).block(block).name(error.to_string()));
        return Ok(());
    }
    let Ok(disk) = DiskMmp::read_from_bytes(&bytes) else { return Ok(()) };
    if disk.mmp_magic.get() != mmp::MAGIC {
        problems.report(Problem::new(Code::MmpMagicWrong).block(block));
        return Ok(());
    }
    let (stored, computed) = (disk.mmp_checksum.get(), disk.checksum(volume.geometry.checksum_seed));
    if volume.geometry.metadata_csum && stored != computed {
        let problem = Problem::new(Code::MmpChecksumWrong).block(block);
        problems.report(problem.found(stored.into()).expected(computed.into()));
        return Ok(());
    }
    match disk.usage() {
        Use::Clean | Use::Mounted(_) => Ok(()),
        Use::Fsck | Use::Invalid(_) => Err(Refusal {
            sentence: "another check of this volume is running, or one was interrupted; if so, tune2fs -E clear_mmp \
                       frees the volume"
                .to_owned(),
            exit: crate::report::exit::OPERATIONAL,
        }),
    }
}
