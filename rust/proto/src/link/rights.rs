//! What a peer may do, by the role in its certificate: the table of `docs/security.md`.

/// How the URIs begin that name a role, in capitals or not.
pub const SCHEME: &str = "softs://";

/// Rights of the holder of a certificate. A token gives all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// To order samples, and to set models.
    pub orders: bool,
    /// To make samples for others.
    pub serves: bool,
    /// To be a rank of a group.
    pub is_rank: bool,
}

impl Rights {
    /// Of a token, of an administrator, and of a certificate that names no role.
    pub const ALL: Self = Self { orders: true, serves: true, is_rank: true };
    /// Of a role that is not known.
    pub const NONE: Self = Self { orders: false, serves: false, is_rank: false };

    /// Those of the URIs `softs://JOB/ROLE[/NAME]` in a certificate, together. `n_named`: how often the certificate has
    /// [`SCHEME`]; where one of these cannot be read as a URI, it gives no right.
    pub fn of_uris<'a>(uris: impl Iterator<Item = &'a str>, n_named: usize) -> Self {
        let (mut rights, mut n_read) = (None, 0);
        for uri in uris {
            let Some((scheme, rest)) = uri.split_at_checked(SCHEME.len()) else { continue };
            if scheme.eq_ignore_ascii_case(SCHEME) {
                n_read += 1;
                rights = rest.split('/').nth(1).map(Self::of_role).into_iter().chain(rights).reduce(Self::or);
            }
        }
        if n_read < n_named { Self::NONE } else { rights.unwrap_or(Self::ALL) }
    }

    /// What a host does not do on a link, for the log; `None` where it may do all.
    #[must_use]
    pub fn limits(self) -> Option<&'static str> {
        match (self.orders, self.serves) {
            (true, false) => Some("makes no samples for others"),
            (false, true) => Some("orders no samples, and sets no models"),
            (false, false) => Some("has no right on a link"),
            (true, true) => None,
        }
    }

    fn of_role(role: &str) -> Self {
        match role {
            "holder" | "admin" => Self::ALL,
            "student" => Self { orders: true, ..Self::NONE },
            "teacher" => Self { serves: true, ..Self::NONE },
            "rank" => Self { is_rank: true, ..Self::NONE },
            _ => Self::NONE,
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            orders: self.orders || other.orders,
            serves: self.serves || other.serves,
            is_rank: self.is_rank || other.is_rank,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rights;

    #[test]
    fn a_certificate_has_the_rights_of_all_roles_that_it_names() {
        let (none, all) = (Rights::NONE, Rights::ALL);
        for (uris, rights) in [
            (&["softs://0123/holder"][..], all),
            (&["softs://digits/admin/anna"], all),
            (&[], all),
            (&["https://digits/teacher/a", "softs://digits"], all),
            (&["softs://digits/student/a"], Rights { orders: true, ..none }),
            (&["softs://digits/teacher"], Rights { serves: true, ..none }),
            (&["softs://digits/rank/0"], Rights { is_rank: true, ..none }),
            (&["softs://d/student/a", "softs://d/teacher/a"], Rights { is_rank: false, ..all }),
            (&["softs://digits/Teacher/a"], none),
            (&["softs://digits//a"], none),
            (&["softs://digits/watch/a", "https://digits"], none),
        ] {
            assert_eq!(Rights::of_uris(uris.iter().copied(), 0), rights, "{uris:?}");
        }
        let one = || ["SOFTS://digits/teacher/a"].into_iter();
        assert_eq!(Rights::of_uris(one(), 1), Rights { serves: true, ..none });
        assert_eq!(Rights::of_uris(one(), 2), none, "one of them is no text");
    }
}
