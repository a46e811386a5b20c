//! CP7: what is declared in Rust of the kernel module's interface is what a C compiler makes of `kernel/outrider_uapi.h`.

use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use outrider_sys::kernel_cache::{
    ABI, BLIND, LOOK, MEMORY, READAHEAD_INFO, ReadaheadInfo, VERSION,
};

macro_rules! offsets {
    ($($field:ident)*) => {
        vec![$((stringify!($field), offset_of!(ReadaheadInfo, $field) as u64)),*]
    };
}

#[test]
fn constants_and_layout_are_those_of_the_header() {
    let fields = offsets!(size flags fd reserved offset length budget bitmap bitmap_offset bitmap_bytes bitmap_written bitmap_start shift
        readers missing issued next cached inserted removed hits misses free available group_used group_limit);
    let mut expected = vec![
        ("OUTRIDER_ABI".to_owned(), ABI as u64),
        ("OUTRIDER_LOOK".to_owned(), u64::from(LOOK)),
        ("OUTRIDER_MEMORY".to_owned(), u64::from(MEMORY)),
        ("OUTRIDER_BLIND".to_owned(), u64::from(BLIND)),
        ("OUTRIDER_VERSION".to_owned(), u64::from(VERSION)),
        (
            "OUTRIDER_READAHEAD_INFO".to_owned(),
            u64::from(READAHEAD_INFO),
        ),
        (
            "sizeof(struct outrider_readahead_info)".to_owned(),
            size_of::<ReadaheadInfo>() as u64,
        ),
    ];
    expected.extend(
        fields
            .into_iter()
            .map(|(f, at)| (format!("offsetof(struct outrider_readahead_info, {f})"), at)),
    );
    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"outrider_uapi.h\"\nint main(void) {\n",
    );
    for (expression, _) in &expected {
        source += &format!("    printf(\"%llu\\n\", (unsigned long long)({expression}));\n");
    }
    source += "    return 0;\n}\n";

    let dir = tempfile::tempdir().unwrap();
    let (c, program) = (dir.path().join("uapi.c"), dir.path().join("uapi"));
    std::fs::write(&c, source).unwrap();
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel");
    let built = Command::new("cc")
        .args(["-Wall", "-Werror", "-I"])
        .arg(kernel)
        .arg("-o")
        .args([&program, &c])
        .status()
        .unwrap();
    assert!(built.success(), "cc");
    let out = Command::new(&program).output().unwrap();
    let said: Vec<u64> = String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(|l| l.parse().unwrap())
        .collect();
    assert_eq!(said.len(), expected.len());
    for ((expression, ours), theirs) in expected.iter().zip(said) {
        assert_eq!(*ours, theirs, "{expression}");
    }
}
