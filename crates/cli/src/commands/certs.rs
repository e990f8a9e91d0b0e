//! `lockkeeper certs`: makes a certificate authority, and certificates for nodes and clients, as files.
//!
//! It must never overwrite a file unasked, and never leave a key readable by others, not even for a moment.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;
use tempfile::NamedTempFile;

use crate::args::{Certs, CertsCommand, ClientCertificate, Common, NewAuthority, NodeCertificate};
use crate::certs::{Authority, CertsError, ClientName, ClusterName, Issued, hosts, new_authority};
use crate::failure::{EXIT_OK, Failure};
use crate::output::{print_json, print_line};

const KEY_MODE: u32 = 0o600;
const CERTIFICATE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o700;

/// The files of one certificate.
#[derive(Serialize)]
struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
}

/// What was made, in `--json`.
#[derive(Serialize)]
struct Made {
    #[serde(flatten)]
    files: CertificateFiles,
    valid_until: String,
}

/// Makes what the command asks for.
pub(crate) fn run(common: &Common, args: &Certs) -> Result<u8, Failure> {
    let now = SystemTime::now();
    let (made, title) = match &args.command {
        CertsCommand::Init(args) => init(args, now)?,
        CertsCommand::Node(args) => node(args, now)?,
        CertsCommand::Client(args) => client(args, now)?,
    };
    if common.json {
        print_json(&made)?;
    } else {
        print_line(&format!("{title}, valid until {}", made.valid_until))?;
        print_line(&format!("  certificate  {}", made.files.certificate.display()))?;
        print_line(&format!("  private key  {}", made.files.key.display()))?;
    }
    Ok(EXIT_OK)
}

fn init(args: &NewAuthority, now: SystemTime) -> Result<(Made, String), Failure> {
    let cluster = ClusterName::new(&args.cluster)?;
    make_directory(&args.dir)
        .map_err(|e| Failure::failed(format!("cannot make the directory {}: {e}", args.dir.display())))?;
    let files = authority_files(&args.dir);
    refuse_to_replace(&files, args.force)?;
    let made = write(files, &new_authority(&cluster, args.days, now)?, args.force)?;
    Ok((made, format!("certificate authority of cluster {cluster}")))
}

fn node(args: &NodeCertificate, now: SystemTime) -> Result<(Made, String), Failure> {
    let hosts = hosts(&args.hosts)?;
    let authority = read_authority(&args.dir, args.cluster.as_deref(), now)?;
    let files = files(&args.dir, &format!("node{}", args.id));
    refuse_to_replace(&files, args.force)?;
    let made = write(files, &authority.node(args.id, &hosts, args.days, now)?, args.force)?;
    Ok((made, format!("certificate of node {} of cluster {}", args.id, authority.cluster)))
}

fn client(args: &ClientCertificate, now: SystemTime) -> Result<(Made, String), Failure> {
    let name = ClientName::new(&args.name)?;
    let authority = read_authority(&args.dir, args.cluster.as_deref(), now)?;
    let files = files(&args.dir, &format!("client-{}", name.as_str()));
    refuse_to_replace(&files, args.force)?;
    let made = write(files, &authority.client(&name, args.days, now)?, args.force)?;
    Ok((made, format!("certificate of client {} of cluster {}", name.as_str(), authority.cluster)))
}

/// Makes a private directory. Directories above it that are missing get the default mode, as others may need them too.
fn make_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made,
    }
}

fn files(directory: &Path, stem: &str) -> CertificateFiles {
    let file = |extension: &str| directory.join(format!("{stem}.{extension}"));
    CertificateFiles { certificate: file("pem"), key: file("key") }
}

fn authority_files(directory: &Path) -> CertificateFiles {
    files(directory, "authority")
}

fn read_authority(directory: &Path, cluster: Option<&str>, now: SystemTime) -> Result<Authority, Failure> {
    let files = authority_files(directory);
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Failure::failed(format!(
                "{} does not exist; make a certificate authority with `lockkeeper certs init --dir {}`",
                path.display(),
                directory.display()
            )),
            _ => Failure::failed(format!("cannot read {}: {error}", path.display())),
        })
    };
    let (certificate, key) = (read(&files.certificate)?, read(&files.key)?);
    let authority = Authority::from_pem(&certificate, &key, now).map_err(|error| match error {
        CertsError::Authority(why) => {
            Failure::failed(format!("the certificate authority in {} cannot be used: {why}", directory.display()))
        }
        other => other.into(),
    })?;
    match cluster.map(ClusterName::new).transpose()? {
        Some(cluster) if cluster != authority.cluster => Err(Failure::usage(format!(
            "--cluster {cluster}: the certificate authority in {} is that of cluster {}",
            directory.display(),
            authority.cluster
        ))),
        _ => Ok(authority),
    }
}

/// Neither file of a pair is written if one of them exists.
fn refuse_to_replace(files: &CertificateFiles, force: bool) -> Result<(), Failure> {
    let existing = [&files.certificate, &files.key].into_iter().find(|path| path.symlink_metadata().is_ok());
    match existing {
        Some(path) if !force => Err(exists(path)),
        _ => Ok(()),
    }
}

fn exists(path: &Path) -> Failure {
    Failure::failed(format!("{} exists; --force replaces the certificate and its key", path.display()))
}

/// Both files are on the disk before either takes its place, so that a failure in between cannot leave a pair that does
/// not match. The certificate is the last: a node that finds it has its key, and a node that finds the new key with the
/// old certificate reads both again.
fn write(files: CertificateFiles, issued: &Issued, force: bool) -> Result<Made, Failure> {
    let key = stage(&files.key, &issued.key, KEY_MODE)?;
    let certificate = stage(&files.certificate, &issued.certificate, CERTIFICATE_MODE)?;
    put_in_place(key, &files.key, force)?;
    put_in_place(certificate, &files.certificate, force)?;
    let directory = directory_of(&files.certificate);
    File::open(directory).and_then(|open| open.sync_all()).map_err(|error| cannot_write(directory, &error))?;
    Ok(Made { files, valid_until: humantime::format_rfc3339_seconds(issued.valid_until).to_string() })
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
}

/// Writes a file beside the place that it will have. Until it has its mode it is readable by its owner only.
fn stage(path: &Path, text: &str, mode: u32) -> Result<NamedTempFile, Failure> {
    let written = || -> io::Result<NamedTempFile> {
        let mut file = tempfile::Builder::new()
            .prefix(".lockkeeper-certs-")
            .permissions(Permissions::from_mode(KEY_MODE))
            .tempfile_in(directory_of(path))?;
        file.write_all(text.as_bytes())?;
        file.as_file().set_permissions(Permissions::from_mode(mode))?;
        file.as_file().sync_all()?;
        Ok(file)
    };
    written().map_err(|error| cannot_write(path, &error))
}

fn put_in_place(file: NamedTempFile, path: &Path, force: bool) -> Result<(), Failure> {
    let kept = if force { file.persist(path) } else { file.persist_noclobber(path) };
    kept.map(drop).map_err(|error| match error.error.kind() {
        ErrorKind::AlreadyExists => exists(path),
        _ => cannot_write(path, &error.error),
    })
}

impl From<CertsError> for Failure {
    fn from(error: CertsError) -> Self {
        match error {
            CertsError::Name(why) => Self::usage(why),
            CertsError::Authority(why) => Self::failed(format!("the certificate authority cannot be used: {why}")),
            CertsError::Failed(why) => Self::failed(format!("cannot make the certificate: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued() -> Issued {
        new_authority(&ClusterName::new("orders").unwrap(), 1, SystemTime::now()).unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn keys_are_private_and_nothing_is_replaced_unasked() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (issued(), issued());
        let made = write(files(directory.path(), "a"), &first, false).unwrap();
        assert_eq!((mode(&made.files.key), mode(&made.files.certificate)), (0o600, 0o644));
        assert!(refuse_to_replace(&made.files, false).is_err());
        assert!(write(files(directory.path(), "a"), &second, false).is_err());
        assert_eq!(fs::read_to_string(&made.files.key).unwrap(), first.key, "a refused write changes nothing");
        fs::set_permissions(&made.files.key, Permissions::from_mode(0o644)).unwrap();
        write(files(directory.path(), "a"), &second, true).unwrap();
        assert_eq!(fs::read_to_string(&made.files.key).unwrap(), second.key);
        assert_eq!(mode(&made.files.key), 0o600, "a replaced key is private again");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no temporary file stays");
    }

    #[test]
    fn a_key_is_not_replaced_without_its_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (issued(), issued());
        let made = write(files(directory.path(), "a"), &first, false).unwrap();
        let apart = CertificateFiles {
            certificate: directory.path().join("missing/a.pem"),
            key: directory.path().join("a.key"),
        };
        let Err(failed) = write(apart, &second, true) else { panic!("there is no such directory") };
        assert!(format!("{failed:?}").contains("missing/a.pem"), "{failed:?}");
        assert_eq!(fs::read_to_string(&made.files.key).unwrap(), first.key);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no temporary file stays");
    }

    #[test]
    fn only_the_directory_itself_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let (above, private) = (directory.path().join("a/b"), directory.path().join("a/b/c"));
        make_directory(&private).unwrap();
        make_directory(&private).expect("it may exist");
        let usual = directory.path().join("usual");
        fs::create_dir(&usual).unwrap();
        assert_eq!((mode(&above), mode(&private)), (mode(&usual), DIRECTORY_MODE));
        fs::write(directory.path().join("file"), "").unwrap();
        assert!(make_directory(&directory.path().join("file")).is_err(), "a file is no directory");
    }
}
