//! The C interfaces, by which programs and plug-ins call us.

mod declared;
mod graphs;
