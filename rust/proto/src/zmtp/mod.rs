//! zmtp
