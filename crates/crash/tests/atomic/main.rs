//! Atomicity on native volumes: content under `data=cow`, and transactions.

mod content;
mod support;
mod transactions;
