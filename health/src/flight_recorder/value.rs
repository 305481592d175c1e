// SPDX-License-Identifier: Apache-2.0
//! Plain data, in an arena: values refer to each other by number, so that shared and even circular ones do no harm, and
//! dropping them does not recurse.

/// The number of a value in its arena.
pub(super) type Id = usize;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    /// A list or a tuple.
    Sequence(Vec<Id>),
    Dict(Vec<(Id, Id)>),
}

/// All values of a dump.
#[derive(Debug, Default)]
pub(super) struct Arena {
    values: Vec<Value>,
}

impl Arena {
    pub(super) fn add(&mut self, value: Value) -> Id {
        self.values.push(value);
        self.values.len() - 1
    }

    pub(super) fn get(&self, id: Id) -> Option<&Value> {
        self.values.get(id)
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Value> {
        self.values.get_mut(id)
    }

    /// The value under a key; the last one where it is there twice, as in Python.
    pub(super) fn field(&self, dict: Id, key: &str) -> Option<Id> {
        self.pairs(dict)
            .iter()
            .rev()
            .find(|(name, _)| self.text(*name) == Some(key))
            .map(|&(_, value)| value)
    }

    pub(super) fn pairs(&self, id: Id) -> &[(Id, Id)] {
        match self.get(id) {
            Some(Value::Dict(pairs)) => pairs,
            _ => &[],
        }
    }

    pub(super) fn items(&self, id: Id) -> &[Id] {
        match self.get(id) {
            Some(Value::Sequence(items)) => items,
            _ => &[],
        }
    }

    pub(super) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A whole number; JSON dumps write some as text.
    pub(super) fn number(&self, id: Id) -> Option<i64> {
        match self.get(id)? {
            Value::Int(number) => Some(*number),
            Value::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    pub(super) fn is_true(&self, id: Id) -> bool {
        self.get(id) == Some(&Value::Bool(true))
    }

    /// Takes in JSON, whose depth its own parser has bounded.
    pub(super) fn add_json(&mut self, json: &serde_json::Value) -> Id {
        let value = match json {
            serde_json::Value::Null => Value::None,
            serde_json::Value::Bool(bool) => Value::Bool(*bool),
            serde_json::Value::Number(number) => match number.as_i64() {
                Some(number) => Value::Int(number),
                None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => Value::Text(text.clone()),
            serde_json::Value::Array(items) => {
                Value::Sequence(items.iter().map(|item| self.add_json(item)).collect())
            }
            serde_json::Value::Object(fields) => {
                let mut pairs = Vec::with_capacity(fields.len());
                for (name, field) in fields {
                    let name = self.add(Value::Text(name.clone()));
                    pairs.push((name, self.add_json(field)));
                }
                Value::Dict(pairs)
            }
        };
        self.add(value)
    }
}
