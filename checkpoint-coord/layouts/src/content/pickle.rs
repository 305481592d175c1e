// SPDX-License-Identifier: Apache-2.0
//! Python pickles as data: values are looked at, nothing is ever called. Of what a
//! class would make, the state is kept. Opcodes: CPython's `Lib/pickletools.py`, protocols 0 to 5.

mod machine;

pub(crate) use self::machine::read;

/// A place in a [`Pickle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u32);

/// A value.
#[derive(Debug)]
pub(crate) enum Value {
    /// None, a float, a number beyond 64 bits, or bytes: what nobody here asks for.
    Other,
    Bool(bool),
    Int(i64),
    Text(String),
    /// A list, a tuple or a set.
    Sequence(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A class or a function.
    Global,
    /// What a class or a function would have made of its arguments.
    Object {
        state: Option<Id>,
        items: Vec<(Id, Id)>,
    },
}

/// What a pickle holds.
#[derive(Debug)]
pub(crate) struct Pickle {
    values: Vec<Value>,
    root: Id,
}

impl Pickle {
    pub(crate) fn root(&self) -> Id {
        self.root
    }

    pub(crate) fn value(&self, id: Id) -> &Value {
        self.values.get(id.0 as usize).unwrap_or(&Value::Other)
    }

    pub(crate) fn int(&self, id: Id) -> Option<i64> {
        match self.value(id) {
            Value::Int(number) => Some(*number),
            _ => None,
        }
    }

    pub(crate) fn unsigned(&self, id: Id) -> Option<u64> {
        self.int(id).and_then(|number| u64::try_from(number).ok())
    }

    pub(crate) fn flag(&self, id: Id) -> Option<bool> {
        match self.value(id) {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    pub(crate) fn text(&self, id: Id) -> Option<&str> {
        match self.value(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The pairs of a dictionary, or of an object that is one.
    pub(crate) fn pairs(&self, id: Id) -> &[(Id, Id)] {
        match self.value(id) {
            Value::Dict(pairs) => pairs,
            Value::Object { items, .. } => items,
            _ => &[],
        }
    }

    /// What a dictionary has under `key`, or an object as its attribute `key`.
    pub(crate) fn get(&self, id: Id, key: &str) -> Option<Id> {
        let found = |id: Id| {
            let pairs = self.pairs(id).iter();
            let mut named = pairs.filter(|(name, _)| self.text(*name) == Some(key));
            named.next_back().map(|&(_, value)| value)
        };
        let attribute = || match self.value(id) {
            Value::Object {
                state: Some(state), ..
            } => found(*state),
            _ => None,
        };
        attribute().or_else(|| found(id))
    }
}
