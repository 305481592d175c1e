// SPDX-License-Identifier: Apache-2.0
//! What many streams cost.
