//! Tests of the world itself: it does what it says, and the same twice. And a few seeds in it.

mod clocks;
mod faults;
mod life;
mod seeds;
mod support;
