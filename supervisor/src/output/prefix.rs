// SPDX-License-Identifier: Apache-2.0
//! What stands in front of a worker's lines on the console.

use super::{OutputSettings, Stream};
use crate::settings::Mode;

/// Makes prefixes from the template or from the command's own convention.
#[derive(Debug)]
pub(super) struct Prefixes {
    template: String,
    role: String,
    hostname: String,
}

impl Prefixes {
    pub(super) fn new(settings: &OutputSettings) -> Self {
        let by_default = match settings.mode {
            Mode::Run => "[${rank}] ",
            Mode::Torchrun => "[${role_name}${local_rank}]:",
        };
        Self {
            template: settings
                .log
                .prefix_template
                .as_deref()
                .unwrap_or(by_default)
                .to_owned(),
            role: settings.role.clone(),
            hostname: settings.hostname.clone(),
        }
    }

    /// The prefix of `stream`'s lines. Both `${name}` and `$name` are replaced, as in a Python template string; what
    /// is no macro stays as it is.
    pub(super) fn of(&self, stream: Stream) -> String {
        let values = [
            ("role_name", self.role.clone()),
            ("local_rank", stream.local_rank.to_string()),
            ("rank", stream.rank.to_string()),
            ("hostname", self.hostname.clone()),
        ];
        let mut prefix = String::with_capacity(self.template.len());
        let mut rest = self.template.as_str();
        while let Some(dollar) = rest.find('$') {
            prefix.push_str(&rest[..dollar]);
            rest = &rest[dollar + 1..];
            if let Some(after) = rest.strip_prefix('$') {
                prefix.push('$');
                rest = after;
                continue;
            }
            let found = values.iter().find_map(|(name, value)| {
                let braced = rest
                    .strip_prefix('{')
                    .and_then(|rest| rest.strip_prefix(name)?.strip_prefix('}'));
                let bare = rest
                    .strip_prefix(name)
                    .filter(|after| !after.starts_with(is_name_character));
                braced.or(bare).map(|after| (value, after))
            });
            match found {
                Some((value, after)) => {
                    prefix.push_str(value);
                    rest = after;
                }
                None => prefix.push('$'),
            }
        }
        prefix.push_str(rest);
        prefix
    }
}

fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}
