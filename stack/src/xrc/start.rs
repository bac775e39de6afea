//! Finds and starts the program that owns a domain.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::domain::DomainFile;
use super::error::XrcError;
use super::spawn;

/// File name of the program.
const NAME: &str = "roce-xrcd";
/// Environment variable with the program's path, if it is neither beside the library nor where a package installs it.
const VARIABLE: &str = "ROCE_XRCD_PROGRAM";
/// Preloaded libraries of the user's programs are not meant for the owner.
const PRELOADED: &str = "LD_PRELOAD";

/// The parameters for starting the owner of a domain.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    /// The domain.
    pub file: DomainFile,
    /// The port that the owner opens.
    pub port: String,
}

impl Owner {
    /// The arguments, after the program's name.
    fn args(&self) -> [String; 3] {
        ["--port".into(), self.port.clone(), self.file.to_string()]
    }

    /// The command line that starts it in a terminal.
    pub(super) fn command(&self) -> String {
        let program = find().unwrap_or_else(|_| NAME.into());
        format!("{} {}", program.display(), self.args().join(" "))
    }

    /// Starts it, as an orphan process.
    ///
    /// # Errors
    /// [`XrcError::NoProgram`], [`XrcError::Start`].
    pub(super) fn start(&self) -> Result<(), XrcError> {
        let program = find()?;
        let text = |bytes: Vec<u8>| CString::new(bytes).ok();
        let args = [NAME.into()].into_iter().chain(self.args());
        let args: Vec<_> = args.filter_map(|arg| text(arg.into_bytes())).collect();
        let env = std::env::vars_os().filter(|(name, _)| name != PRELOADED);
        let env: Vec<_> = env.filter_map(|(name, value)| text(assignment(name, value))).collect();
        let path = text(program.clone().into_os_string().into_vec()).unwrap_or_default();
        spawn::start(&path, &args, &env).map_err(|error| XrcError::Start { program, error })
    }
}

fn assignment(mut name: OsString, value: OsString) -> Vec<u8> {
    name.push("=");
    name.push(value);
    name.into_vec()
}

/// The path of the program.
fn find() -> Result<PathBuf, XrcError> {
    // A program with more privileges than its user executes nothing that the user names.
    let named = if spawn::has_more_rights_than_its_user() { None } else { std::env::var_os(VARIABLE) };
    let places = match named {
        Some(program) => vec![program.into()],
        None => {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
            image_of(find as fn() -> _ as usize, &maps).map(|image| beside(&image)).unwrap_or_default()
        }
    };
    // Made absolute, because the program is started in another directory.
    let found = places.iter().find(|place| place.is_file()).and_then(|place| std::path::absolute(place).ok());
    found.ok_or(XrcError::NoProgram { places })
}

/// The file that an address is mapped from, by /proc/self/maps: the library that this code is part of, or the program.
fn image_of(address: usize, maps: &str) -> Option<PathBuf> {
    let line = maps.lines().find(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        range.is_some_and(|(from, to)| {
            number(from).is_some_and(|from| from <= address) && number(to).is_some_and(|to| address < to)
        })
    })?;
    let path = &line[line.find('/')?..];
    // The file was replaced by a later release, which may include the program.
    Some(path.strip_suffix(" (deleted)").unwrap_or(path).into())
}

/// Candidate paths of the program: beside the library, or beside a program that the stack is linked into.
fn beside(image: &Path) -> Vec<PathBuf> {
    let dir = image.parent().unwrap_or(Path::new("/"));
    let below = ["", "..", "../lib/roce", "../libexec", "../bin", "../../bin"];
    below.map(|way| dir.join(way).join(NAME)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(miri))]
    #[test]
    fn this_code_is_in_the_program_that_runs() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let image = image_of(find as fn() -> _ as usize, &maps).unwrap();
        assert_eq!(image.canonicalize().unwrap(), std::env::current_exe().unwrap().canonicalize().unwrap());
        assert_eq!(image_of(1, &maps), None);
    }

    #[test]
    fn files_with_spaces_and_those_that_were_replaced_have_their_names() {
        let maps = "\
5600-5700 r--p 00000000 00:00 0 [heap]
5700-5800 r-xp 00001000 08:01 131 /opt/a b/libibverbs.so.1
5800-5900 r-xp 00001000 08:01 132                        /usr/lib/roce/libibverbs.so.1 (deleted)
";
        assert_eq!(image_of(0x56ff, maps), None);
        assert_eq!(image_of(0x5700, maps), Some("/opt/a b/libibverbs.so.1".into()));
        let library = image_of(0x58ff, maps).unwrap();
        assert_eq!(library, Path::new("/usr/lib/roce/libibverbs.so.1"));
        assert_eq!(beside(&library)[0], Path::new("/usr/lib/roce/roce-xrcd"));
        assert_eq!(image_of(0x5900, maps), None);
    }
}
