//! `lockkeeper top`: what one refresh shows, and the screen that shows it.

pub(crate) mod frame;
pub(crate) mod render;
pub(crate) mod screen;
