# SPDX-License-Identifier: Apache-2.0
#
# Bugs that are put into a copy of the source tree, for scripts that show that they are found. To be sourced; `root` is the
# working tree, `tree` the copy.

# field FILE FIELD
field() {
    python3 - "$1" "$2" <<'PYTHON'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    print(tomllib.load(file)[sys.argv[2]])
PYTHON
}

# Brings the copy to what is in the working tree. Files that are the same keep their times, so that little is built.
copy_sources() {
    mkdir -p "$tree"
    (cd "$root" && git ls-files -z --cached --others --exclude-standard) | while IFS= read -r -d '' file; do
        [ -f "$root/$file" ] || continue
        cmp -s "$root/$file" "$tree/$file" || { mkdir -p "$tree/$(dirname "$file")" && cp "$root/$file" "$tree/$file"; }
    done
}

# The bug that the file describes goes into the copy.
plant() {
    python3 - "$1" "$tree" <<'PYTHON'
import pathlib, sys, tomllib
with open(sys.argv[1], "rb") as file:
    bug = tomllib.load(file)
path = pathlib.Path(sys.argv[2]) / bug["file"]
text = path.read_text()
if text.count(bug["find"]) != 1:
    sys.exit(f"{sys.argv[1]}: what it replaces is not there once, but {text.count(bug['find'])} times")
path.write_text(text.replace(bug["find"], bug["replace"]))
PYTHON
}
