//! The world itself: that it does what it says, and the same thing twice.

mod clocks;
mod faults;
mod life;
mod support;
