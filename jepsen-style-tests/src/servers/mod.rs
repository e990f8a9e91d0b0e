//! Lock services of others as real processes on loopback, for comparisons: started, killed, paused, restarted empty,
//! and stopped with their owner.

pub mod mariadb;
pub mod redis;
pub mod subjects;
pub mod zookeeper;
