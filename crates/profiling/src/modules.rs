//! The files that code was loaded from, and how to walk the stacks of their functions.

use std::fs::{self, File};
use std::ops::Range;

use framehop::ExplicitModuleSectionInfo;
use object::read::ReadCache;
use object::{Object, ObjectSection, ObjectSegment};

/// A file's code in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Module {
    /// Where the code is.
    pub(crate) range: Range<u64>,
    /// Where in the file it begins.
    pub(crate) offset: u64,
    pub(crate) path: String,
    /// The first address of the file's first part.
    start: u64,
}

/// All code of this process that came from files. The program itself is read through the kernel: its path may lead elsewhere by now.
pub(crate) fn modules() -> Vec<Module> {
    parse(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// Reads lines such as `55a0-55b0 r-xp 00001000 fd:00 1234   /usr/bin/program`.
fn parse(maps: &str) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    let mut first: Option<(&str, u64)> = None;
    for line in maps.lines() {
        let mut words = line.splitn(6, ' ');
        let (Some(range), Some(rights), Some(offset)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Some(path) = words.nth(2).map(str::trim).filter(|path| path.starts_with('/')) else { continue };
        let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
        let ends =
            range.split_once('-').and_then(|(start, end)| Some((hexadecimal(start)?, hexadecimal(end)?)));
        let (Some((start, end)), Some(offset)) = (ends, hexadecimal(offset)) else { continue };
        if first.is_none_or(|(of, _)| of != path) {
            first = Some((path, start));
        }
        if rights.contains('x') {
            let file_start = first.map_or(start, |(_, start)| start);
            modules.push(Module { range: start..end, offset, path: path.to_owned(), start: file_start });
        }
    }
    modules
}

impl Module {
    /// What an unwinder needs to know about the file.
    pub(crate) fn unwinding(&self) -> Option<framehop::Module<Vec<u8>>> {
        let cache = ReadCache::new(self.open()?);
        let file = object::File::parse(&cache).ok()?;
        let base = self.base(&file)?;
        let range = |name: &str| {
            let section = file.section_by_name(name)?;
            Some(section.address()..section.address().checked_add(section.size())?)
        };
        let data = |name: &str| Some(file.section_by_name(name)?.uncompressed_data().ok()?.into_owned());
        let sections = ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: range(".text"),
            got_svma: range(".got"),
            eh_frame_svma: range(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: range(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            ..ExplicitModuleSectionInfo::default()
        };
        Some(framehop::Module::new(self.path.clone(), self.range.clone(), base, sections))
    }

    /// The file's build id, as hexadecimal digits; empty without one.
    pub(crate) fn build_id(&self) -> String {
        let Some(file) = self.open() else { return String::new() };
        let cache = ReadCache::new(file);
        let id = object::File::parse(&cache)
            .ok()
            .and_then(|file| file.build_id().ok().flatten().map(<[u8]>::to_vec));
        id.unwrap_or_default().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    }

    /// The distance between addresses in memory and in the file.
    pub(crate) fn base<'data>(&self, file: &impl Object<'data>) -> Option<u64> {
        // The first part lies at the beginning of a page; the rest of the file follows in the same distance.
        let first = file.segments().map(|segment| segment.address()).min()?;
        self.start.checked_sub(first & !0xfff)
    }

    pub(crate) fn open(&self) -> Option<File> {
        let own = fs::read_link("/proc/self/exe").is_ok_and(|own| own.to_str() == Some(&self.path));
        File::open(if own { "/proc/self/exe" } else { &self.path }).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_with_the_beginning_of_its_file() {
        let maps = "\
            1000-2000 r--p 00000000 fd:00 7                  /usr/bin/a program\n\
            2000-5000 r-xp 00001000 fd:00 7                  /usr/bin/a program\n\
            5000-6000 rw-p 00004000 fd:00 7                  /usr/bin/a program\n\
            7000-8000 rw-p 00000000 00:00 0                  [heap]\n\
            9000-a000 r-xp 00000000 00:00 0 \n\
            b000-c000 r-xp 00000000 fd:00 8                  /lib/b.so\n\
            nonsense\n";
        let found = parse(maps);
        let program = Module {
            range: 0x2000..0x5000,
            offset: 0x1000,
            path: "/usr/bin/a program".to_owned(),
            start: 0x1000,
        };
        let library =
            Module { range: 0xb000..0xc000, offset: 0, path: "/lib/b.so".to_owned(), start: 0xb000 };
        assert_eq!(found, [program, library]);
    }

    #[test]
    fn our_own_code_can_be_unwound() {
        let here = our_own_code_can_be_unwound as fn() as usize as u64;
        let modules = modules();
        let own = modules.iter().find(|module| module.range.contains(&here)).expect("our own code is mapped");
        assert!(own.unwinding().is_some());
    }
}
