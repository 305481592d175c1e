// SPDX-License-Identifier: Apache-2.0
//! A value in the store: text that is shared, and read as a record at most once.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::RecordError;
use crate::records::decode;

/// UTF-8 text, JSON by convention. Copies are cheap: they share the text and what it was read as, so that a plan of
/// thousands of nodes is read once in a process, however many machines look at it.
#[derive(Clone)]
pub struct Text(Arc<Shared>);

struct Shared {
    text: String,
    record: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl Text {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// The record that the text is, as read now or earlier.
    pub(crate) fn record<T>(&self, key: &str) -> Result<Arc<T>, RecordError>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        let known = self.0.record.get().cloned();
        if let Some(record) = known.and_then(|known| known.downcast::<T>().ok()) {
            return Ok(record);
        }
        let record: Arc<T> = Arc::new(decode(key, &self.0.text)?);
        // Somebody may have been faster, with the same.
        let any: Arc<dyn Any + Send + Sync> = Arc::<T>::clone(&record);
        self.0.record.get_or_init(|| any);
        Ok(record)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        let record = OnceLock::new();
        Self(Arc::new(Shared { text, record }))
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.as_str() == other.as_str()
    }
}

impl Eq for Text {}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(formatter)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LeaderRecord, Ledger};

    #[test]
    fn copies_share_the_record_and_text_is_still_text() {
        let text = Text::from(r#"{"version":1,"node":"a","incarnation":3}"#);
        let first = text.record::<LeaderRecord>("leader").unwrap();
        let again = text.clone().record::<LeaderRecord>("leader").unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert!(
            text.record::<Ledger>("ledger").is_err(),
            "it is another record"
        );
        let json = serde_json::to_string(&text).unwrap();
        assert_eq!(serde_json::from_str::<Text>(&json).unwrap(), text);
    }
}
