//! The server as its clients meet it: over a pair of sockets, over real ones, and over any bytes.

mod client;
mod commands;
mod durable;
mod handshake;
mod hostile;
mod model;
mod sockets;
