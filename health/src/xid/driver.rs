// SPDX-License-Identifier: Apache-2.0
//! Versions of the driver, for the codes that mean something else in an older one.

/// A driver, known by its branch: 570 for 570.86.15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Driver {
    branch: u32,
}

/// Why a text is no version of a driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a driver version such as 570.86.15")]
pub struct DriverError {
    text: String,
}

/// The drivers that a row of the catalogue holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branches {
    /// All that no other row names.
    Any,
    /// Those of one branch.
    Only(u32),
    /// Those of older branches than this.
    Before(u32),
}

impl Driver {
    /// Reads a version: `570.86.15`, `570`, or `R570`.
    pub fn parse(text: &str) -> Result<Self, DriverError> {
        let digits = text.strip_prefix(['R', 'r']).unwrap_or(text);
        let mut parts = digits.split('.');
        let branch = parts.next().and_then(number);
        match branch {
            Some(branch) if branch > 0 && parts.all(|part| number(part).is_some()) => {
                Ok(Self { branch })
            }
            _ => Err(DriverError {
                text: text.to_owned(),
            }),
        }
    }

    /// The branch, such as 570.
    pub const fn branch(self) -> u32 {
        self.branch
    }
}

impl Branches {
    /// Reads `-`, `535` or `<550`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text.strip_prefix('<') {
            Some(branch) => number(branch).map(Self::Before),
            None if text == "-" => Some(Self::Any),
            None => number(text).map(Self::Only),
        }
    }

    /// Whether these are named drivers, and this is one of them.
    pub fn name_driver(self, driver: Driver) -> bool {
        match self {
            Self::Any => false,
            Self::Only(branch) => driver.branch == branch,
            Self::Before(branch) => driver.branch < branch,
        }
    }

    /// In words: `driver 535`, `drivers before 550`; empty for all.
    pub fn words(self) -> String {
        match self {
            Self::Any => String::new(),
            Self::Only(branch) => format!("driver {branch}"),
            Self::Before(branch) => format!("drivers before {branch}"),
        }
    }
}

/// A number that is digits and nothing else.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_known_by_their_branch() {
        for (text, branch) in [("570.86.15", 570), ("R535", 535), ("610", 610)] {
            assert_eq!(Driver::parse(text).unwrap().branch(), branch);
        }
        for text in ["", "R", "570.", "570.x", "+570", "0.1", "99999999999"] {
            let error = Driver::parse(text).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("`{text}` is not a driver version such as 570.86.15")
            );
        }
    }
}
