// SPDX-License-Identifier: Apache-2.0
//! `etcd://h1:2379,h2:2379/prefix`.

use super::{EtcdEndpoint, EtcdSettings, EtcdTls};

/// etcd's own port for clients.
const DEFAULT_PORT: u16 = 2379;

/// Settings, or what is wrong in words.
pub(super) fn parse(uri: &str) -> Result<EtcdSettings, String> {
    let (scheme, rest) = uri
        .split_once("://")
        .ok_or("write it as etcd://HOST:PORT,HOST:PORT")?;
    let tls = match scheme {
        "etcd" => None,
        "etcds" => Some(EtcdTls::default()),
        "http" => return Err("write etcd:// instead of http://".to_owned()),
        "https" => return Err("write etcds:// instead of https://".to_owned()),
        other => {
            return Err(format!(
                "`{other}` is not known; write etcd://, or etcds:// for TLS"
            ));
        }
    };
    if rest.contains('@') {
        return Err(
            "user and password do not belong into the address, where everybody can see them: \
             name the user by itself, and put the password into a file"
                .to_owned(),
        );
    }
    let (hosts, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, ""),
    };
    if let Some(wrong) = rest.chars().find(|letter| "?#".contains(*letter)) {
        return Err(format!(
            "nothing may follow the prefix, but a `{wrong}` does"
        ));
    }
    let mut endpoints = Vec::new();
    for host in hosts.split(',') {
        let endpoint = endpoint(host)?;
        if endpoints.contains(&endpoint) {
            return Err(format!("{endpoint} is named twice"));
        }
        endpoints.push(endpoint);
    }
    Ok(EtcdSettings {
        prefix: path.trim_end_matches('/').to_owned(),
        tls,
        ..EtcdSettings::new(endpoints)
    })
}

/// The URI as it may be shown.
pub(super) fn without_password(uri: &str) -> String {
    let start = uri.find("://").map_or(0, |at| at + 3);
    // A password may hold anything, a slash too.
    match uri[start..].rfind('@') {
        Some(at) => format!("{}...{}", &uri[..start], &uri[start + at..]),
        None => uri.to_owned(),
    }
}

fn endpoint(text: &str) -> Result<EtcdEndpoint, String> {
    if text.is_empty() {
        return Err("a host is missing".to_owned());
    }
    let (host, port) = split_port(text)?;
    if host.is_empty() {
        return Err(format!("`{text}` lacks the host"));
    }
    if let Some(wrong) = host
        .chars()
        .find(|letter| letter.is_whitespace() || letter.is_control() || "%\\\"".contains(*letter))
    {
        return Err(format!("the host `{host}` has a {wrong:?} in it"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => {
                return Err(format!(
                    "`{port}` in `{text}` is not a port from 1 to 65535"
                ));
            }
        },
    };
    Ok(EtcdEndpoint {
        host: host.to_owned(),
        port,
    })
}

fn split_port(text: &str) -> Result<(&str, Option<&str>), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest
            .split_once(']')
            .ok_or_else(|| format!("`{text}` lacks a `]`"))?;
        if address.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(format!("`{address}` is not an IPv6 address"));
        }
        return match rest.strip_prefix(':') {
            Some(port) => Ok((address, Some(port))),
            None if rest.is_empty() => Ok((address, None)),
            None => Err(format!("`{rest}` after `]` is not `:` and a port")),
        };
    }
    match text.split_once(':') {
        None => Ok((text, None)),
        Some((_, port)) if port.contains(':') => Err(format!(
            "`{text}` has more than one `:`; an IPv6 address needs brackets, as in [::1]:2379"
        )),
        Some((host, port)) => Ok((host, Some(port))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(uri: &str) -> Vec<String> {
        let settings = EtcdSettings::from_uri(uri).unwrap();
        settings.endpoints.iter().map(ToString::to_string).collect()
    }

    fn refused(uri: &str) -> String {
        EtcdSettings::from_uri(uri).unwrap_err().to_string()
    }

    #[test]
    fn endpoints_prefix_and_tls_are_read() {
        assert_eq!(
            shown("etcd://a:1,b,10.0.0.7:2"),
            ["a:1", "b:2379", "10.0.0.7:2"]
        );
        assert_eq!(
            shown("etcd://[::1]:9,[fe80::1]"),
            ["[::1]:9", "[fe80::1]:2379"]
        );
        let plain = EtcdSettings::from_uri("etcd://a").unwrap();
        assert_eq!((plain.prefix.as_str(), &plain.tls), ("", &None));
        assert_eq!(plain.url(&plain.endpoints[0]), "http://a:2379");
        let secured = EtcdSettings::from_uri("etcds://a,b/teams/vision/").unwrap();
        assert_eq!(secured.prefix, "/teams/vision");
        assert_eq!(secured.tls, Some(EtcdTls::default()));
        assert_eq!(secured.url(&secured.endpoints[1]), "https://b:2379");
        assert_eq!(EtcdSettings::from_uri("etcd://a/").unwrap().prefix, "");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (uri, word) in [
            ("h1:2379", "etcd://HOST"),
            ("http://h1:2379", "etcd:// instead"),
            ("https://h1:2379", "etcds:// instead"),
            ("zk://h1", "`zk` is not known"),
            ("etcd://", "host is missing"),
            ("etcd://a,,b", "host is missing"),
            ("etcd://a,a:2379", "a:2379 is named twice"),
            ("etcd://:2379", "lacks the host"),
            ("etcd://a:0", "not a port"),
            ("etcd://a:65536", "not a port"),
            ("etcd://a:", "not a port"),
            ("etcd://::1", "brackets"),
            ("etcd://[::1", "lacks a `]`"),
            ("etcd://[::1]2379", "after `]`"),
            ("etcd://[a]:1", "not an IPv6"),
            ("etcd://a b:1", "' '"),
            ("etcd://a/p?x=1", "`?`"),
        ] {
            let text = refused(uri);
            assert!(text.contains(word), "{uri}: {text}");
            assert!(text.contains(uri), "{text}");
        }
    }

    #[test]
    fn a_password_is_refused_and_not_shown() {
        let text = refused("etcd://root:a/secret@h1:2379/p");
        assert!(text.contains("password into a file"), "{text}");
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("etcd://...@h1:2379/p"), "{text}");
    }
}
