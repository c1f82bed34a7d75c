//! Backend trait.
