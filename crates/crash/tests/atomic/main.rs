//! All or nothing, on native volumes: content that is copied on write, and transactions.

mod content;
mod support;
mod transactions;
