//! A secret in a file.

use std::path::PathBuf;
use std::sync::Arc;

use waybill_config::{Secret, file_permissions};

use crate::reread::{FileRefused, LOOK_EVERY, Reread};

/// The longest secret. Servers refuse longer headers.
const SECRET_BYTES_MAX: usize = 16 * 1024;

/// A secret that is read from a file, and read again when the file changes.
#[derive(Clone, Debug)]
pub struct SecretFile(Arc<Reread<Secret>>);

impl SecretFile {
    /// Reads the file that `key` names: one line of visible ASCII, with or without a line end.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or has other content.
    pub fn open(key: String, path: PathBuf) -> Result<Self, FileRefused> {
        let (name, of, warned_of) = (path.display().to_string(), key.clone(), path.clone());
        let read = move |texts: &[Vec<u8>]| {
            file_permissions::warn_if_world_readable(&warned_of, &of);
            read(&texts[0]).map_err(|problem| format!("{name} {problem}"))
        };
        Reread::open(key, vec![path], read).map(|file| Self(Arc::new(file)))
    }

    /// The secret. A change of the file takes effect within seconds.
    pub async fn get(&self) -> Arc<Secret> {
        self.0.fresh(LOOK_EVERY).await
    }

    /// The secret that the file contains now.
    pub async fn get_anew(&self) -> Arc<Secret> {
        self.0.fresh(std::time::Duration::ZERO).await
    }
}

fn read(text: &[u8]) -> Result<Secret, String> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    if text.len() > SECRET_BYTES_MAX {
        return Err(format!(
            "is longer than a secret may be, {SECRET_BYTES_MAX} bytes"
        ));
    }
    // The text itself is not quoted: it is a secret.
    match std::str::from_utf8(text) {
        Ok(text) if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) => {
            Ok(Secret::from(text))
        }
        Ok(_) | Err(_) => {
            Err("contains line breaks or characters other than visible ASCII".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_changed_secret_takes_effect_and_a_broken_one_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let open = || SecretFile::open("auth.bearer.tokenFile".to_owned(), path.clone());
        for bad in ["", "\n", "two\nlines", "sm\u{f8}rebr\u{f8}d"] {
            std::fs::write(&path, bad).unwrap();
            let error = open().unwrap_err().to_string();
            assert!(error.starts_with("auth.bearer.tokenFile: "), "{error}");
            let quotes_it = !bad.trim().is_empty() && error.contains(bad.trim());
            assert!(!quotes_it, "{error}");
        }
        std::fs::write(&path, "x".repeat(SECRET_BYTES_MAX + 1)).unwrap();
        assert!(open().unwrap_err().to_string().contains("is longer"));

        std::fs::write(&path, "one\r\n").unwrap();
        let file = open().unwrap();
        assert_eq!(file.get().await.reveal(), "one");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(file.get_anew().await.reveal(), "two");
        std::fs::write(&path, "").unwrap();
        assert_eq!(file.get_anew().await.reveal(), "two");
        assert!(!format!("{file:?}").contains("two"));
    }
}
