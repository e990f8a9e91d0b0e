//! The world itself: that it does what it says, and the same thing twice. And a few seeds in it.

mod clocks;
mod faults;
mod life;
mod seeds;
mod support;
