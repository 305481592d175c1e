// SPDX-License-Identifier: Apache-2.0
//! Compiles the `.proto` file, without needing `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/steadfast.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // Findings are also values in the store and lines in the journal, as JSON.
        .type_attribute(
            ".steadfast.v1",
            "#[derive(serde::Serialize, serde::Deserialize)]",
        )
        .message_attribute(".steadfast.v1", "#[serde(default)]")
        .client_mod_attribute("steadfast.v1", "#[cfg(feature = \"grpc\")]")
        .server_mod_attribute("steadfast.v1", "#[cfg(feature = \"grpc\")]")
        .compile_fds(descriptors)?;
    Ok(())
}
