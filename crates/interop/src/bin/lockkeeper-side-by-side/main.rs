//! Asks real ZooKeeper and Lockkeeper the same questions and compares what they answer.
fn main() {}
