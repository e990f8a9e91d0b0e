//! The lock recipes against a real cluster inside this process.

mod mutex;
mod recipes;
mod sharing;
mod trouble;

use lockkeeper_client::Transport;

const TRANSPORTS: [Transport; 2] = [Transport::Stream, Transport::Http];
