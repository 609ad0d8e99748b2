//! supplier
