// This file is empty, so that functions without a body (go:linkname) compile.
