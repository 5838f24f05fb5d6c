//! The transport of FUSE requests that a peer asks for, and whether the kernel offers io_uring.

use crate::{Error, Result};
use serde::Serialize;
use std::fmt;
use std::fs;
use std::str::FromStr;

/// The kernel's parameter that enables FUSE over io_uring for mounts made afterwards.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// A transport of FUSE requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// /dev/fuse, which every kernel has.
    DevFuse,
    /// io_uring, which root has to enable in the kernel.
    IoUring,
}

impl Transport {
    /// All transports.
    const ALL: [Self; 2] = [Self::DevFuse, Self::IoUring];

    /// The name in a peer's name and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DevFuse => "dev-fuse",
            Self::IoUring => "io_uring",
        }
    }

    /// The name in the statistics of a mount.
    pub(crate) fn reported(self) -> &'static str {
        match self {
            Self::DevFuse => "/dev/fuse",
            Self::IoUring => "io_uring",
        }
    }

    /// The option of `extant mount` that selects it; for io_uring only where the kernel offers that.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::DevFuse => "transport=device",
            Self::IoUring => "transport=best",
        }
    }

    /// The same for a mount that this process serves.
    pub(crate) fn of_session(self) -> fuse_wire::Transport {
        match self {
            Self::DevFuse => fuse_wire::Transport::Device,
            Self::IoUring => fuse_wire::Transport::Best,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|transport| transport.name() == name);
        let names = || Self::ALL.map(Self::name).join(" or ");
        found.ok_or_else(|| format!("{name}: a transport is {}", names()))
    }
}

/// The state of FUSE over io_uring in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoUring {
    /// Supported and enabled.
    On,
    /// Supported, not enabled.
    Off,
    /// Not supported, or the kernel's module for FUSE is not loaded.
    Missing,
}

impl IoUring {
    /// The state in this kernel now.
    #[must_use]
    pub fn here() -> Self {
        Self::of(fs::read(PARAMETER).ok().as_deref())
    }

    /// The state for the content of the kernel's parameter; `None` where there is no such parameter.
    fn of(parameter: Option<&[u8]>) -> Self {
        match parameter {
            Some([b'Y' | b'1', ..]) => Self::On,
            Some(_) => Self::Off,
            None => Self::Missing,
        }
    }

    /// The state in words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::On => "FUSE over io_uring on",
            Self::Off => "FUSE over io_uring off",
            Self::Missing => "no FUSE over io_uring",
        }
    }

    /// Checks that the kernel offers the transport that a peer asks for.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the way to enable io_uring.
    pub(crate) fn allow(self, peer: &str, asked: Option<Transport>) -> Result<()> {
        let why = match (asked, self) {
            (None | Some(Transport::DevFuse), _) | (_, Self::On) => return Ok(()),
            (_, Self::Off) => {
                format!("is disabled in the kernel; as root `echo Y > {PARAMETER}` enables it for mounts from now on")
            }
            (_, Self::Missing) => {
                let first = "Linux 6.14 is the first version that does";
                format!("is not supported by the kernel ({first}), or its module is not loaded (`modprobe fuse`)")
            }
        };
        Err(Error::Unsupported(format!("{peer}: FUSE over io_uring {why}")))
    }
}

/// Checks that a mount uses the transport that was asked for; `used` is that of its statistics.
///
/// # Errors
/// [`Error::Unsupported`] where it uses another one, as happens where the system forbids io_uring to its server.
pub(crate) fn confirm(asked: Option<Transport>, used: Option<&str>) -> Result<()> {
    match asked {
        Some(asked) if used != Some(asked.reported()) => {
            let used = used.unwrap_or("an unknown transport");
            let asked = asked.reported();
            Err(Error::Unsupported(format!("the mount uses {used}, not {asked} (is kernel.io_uring_disabled set?)")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_parameter_is_understood() {
        let state = |said: Option<&str>| IoUring::of(said.map(str::as_bytes));
        assert_eq!([Some("Y\n"), Some("1\n")].map(state), [IoUring::On; 2]);
        assert_eq!([Some("N\n"), Some("")].map(state), [IoUring::Off; 2]);
        assert_eq!(state(None), IoUring::Missing);
    }

    #[test]
    fn io_uring_is_refused_where_it_is_off() {
        for state in [IoUring::On, IoUring::Off, IoUring::Missing] {
            state.allow("extant", None).unwrap();
            state.allow("extant", Some(Transport::DevFuse)).unwrap();
        }
        IoUring::On.allow("extant", Some(Transport::IoUring)).unwrap();
        let refusal = |state: IoUring| state.allow("extant", Some(Transport::IoUring)).unwrap_err().to_string();
        let (off, missing) = (refusal(IoUring::Off), refusal(IoUring::Missing));
        assert!(off.starts_with("extant: ") && off.contains("`echo Y > /sys/module/fuse/"), "{off}");
        assert!(missing.contains("Linux 6.14") && !missing.contains("echo"), "{missing}");
        assert_eq!([&off, &missing].map(|sentence| sentence.lines().count()), [1, 1]);
    }

    #[test]
    fn another_transport_than_the_one_asked_for_is_an_error() {
        confirm(None, None).unwrap();
        confirm(None, Some("/dev/fuse")).unwrap();
        for transport in Transport::ALL {
            assert_eq!(transport.name().parse::<Transport>().unwrap(), transport);
            confirm(Some(transport), Some(transport.reported())).unwrap();
            assert!(confirm(Some(transport), None).is_err());
        }
        let error = confirm(Some(Transport::IoUring), Some("/dev/fuse")).unwrap_err().to_string();
        assert!(error.starts_with("the mount uses /dev/fuse, not io_uring"), "{error}");
        let error = "pigeon".parse::<Transport>().unwrap_err();
        assert_eq!(error, "pigeon: a transport is dev-fuse or io_uring");
    }
}
