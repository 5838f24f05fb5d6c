//! End-to-end tests of the program: every command on real volumes, its output, its errors, its exit status.

mod archives;
mod bad;
mod checking;
mod common;
mod converting;
mod damaging;
mod deep;
mod exploring;
mod fragmentation;
mod fsck;
mod fstab;
mod getting;
mod kero;
mod looking;
mod making;
mod membership;
mod mounting;
mod names;
mod native;
mod others;
mod putting;
mod serving;
mod snapshots;
mod stopping;
mod transactions;
