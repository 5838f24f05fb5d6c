//! The server from its clients' view: over a pair of sockets, over real sockets, and with arbitrary bytes.

mod client;
mod commands;
mod durable;
mod handshake;
mod hostile;
mod model;
mod sockets;
