// Package ort runs models by an onnxruntime shared library, which it loads at run time through
// purego, without cgo. The C interface is append-only, so the numbers of its functions, taken
// from onnxruntime_c_api.h, hold for every library that knows API version 17 (onnxruntime 1.17
// of January 2024) or later.
package ort

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Env names the environment variable that holds the path of the library.
const Env = "STATIONMASTER_ONNXRUNTIME"

// ErrNoLibrary says that no usable library was found. It is of kind errdef.ErrUnsupported.
var ErrNoLibrary = errdef.New(errdef.ErrUnsupported, "no onnxruntime shared library")

// apiVersion is the version of the C interface that is asked for.
const apiVersion = 17

// The places of functions in struct OrtApi.
const (
	fnGetErrorCode                   = 1
	fnGetErrorMessage                = 2
	fnCreateEnv                      = 3
	fnCreateSession                  = 7
	fnRun                            = 9
	fnCreateSessionOptions           = 10
	fnSessionGetInputCount           = 30
	fnSessionGetOutputCount          = 31
	fnSessionGetInputTypeInfo        = 33
	fnSessionGetOutputTypeInfo       = 34
	fnSessionGetInputName            = 36
	fnSessionGetOutputName           = 37
	fnCreateRunOptions               = 39
	fnRunOptionsSetTerminate         = 46
	fnCreateTensorAsOrtValue         = 48
	fnCreateTensorWithDataAsOrtValue = 49
	fnGetTensorMutableData           = 51
	fnFillStringTensor               = 52
	fnGetStringTensorDataLength      = 53
	fnGetStringTensorContent         = 54
	fnCastTypeInfoToTensorInfo       = 55
	fnGetOnnxTypeFromTypeInfo        = 56
	fnGetTensorElementType           = 60
	fnGetDimensionsCount             = 61
	fnGetDimensions                  = 62
	fnGetSymbolicDimensions          = 63
	fnGetTensorTypeAndShape          = 65
	fnGetValueType                   = 67
	fnCreateCPUMemoryInfo            = 69
	fnAllocatorFree                  = 76
	fnGetDefaultAllocator            = 78
	fnGetValue                       = 80
	fnGetValueCount                  = 81
	fnReleaseStatus                  = 93
	fnReleaseSession                 = 95
	fnReleaseValue                   = 96
	fnReleaseRunOptions              = 97
	fnReleaseTypeInfo                = 98
	fnReleaseTensorInfo              = 99
	fnReleaseSessionOptions          = 100
	fnCastTypeInfoToMapInfo          = 103
	fnCastTypeInfoToSequenceInfo     = 104
	fnGetMapKeyType                  = 105
	fnGetMapValueType                = 106
	fnGetSequenceElementType         = 107
	fnCount                          = 108
)

// OrtErrorCode values that are the request's fault or the model's.
const (
	codeInvalidArgument = 2
	codeNotImplemented  = 9
	codeInvalidGraph    = 10
	codeInvalidProtobuf = 7
)

// Library is a loaded onnxruntime. It stays loaded for the life of the process, since its
// threads can't be taken back, and is safe for concurrent use.
type Library struct {
	// Path is what was loaded, and Version what it calls itself, such as "1.22.1".
	Path, Version string

	fns       [fnCount]uintptr
	env       uintptr
	memory    uintptr // OrtMemoryInfo of ordinary memory
	allocator uintptr
}

var loaded struct {
	sync.Mutex
	byPath map[string]*Library
}

// Load opens the library at path; or, when that is empty, the one that the environment
// variable Env names; or, when that is unset, one under the usual names, wherever the system
// looks for libraries. Loading one twice gives the same. Errors are ErrNoLibrary.
func Load(path string) (*Library, error) {
	if !canLoad {
		return nil, fmt.Errorf("%w can be loaded: this binary was linked for images without a C library; use one built without the tag scratch", ErrNoLibrary)
	}
	candidates := usualNames()
	if path == "" {
		path = os.Getenv(Env)
	}
	if path != "" {
		candidates = []string{path}
	}
	loaded.Lock()
	defer loaded.Unlock()
	var tried []error
	for _, c := range candidates {
		if lib := loaded.byPath[c]; lib != nil {
			return lib, nil
		}
		lib, err := load(c)
		if err != nil {
			tried = append(tried, err)
			continue
		}
		if loaded.byPath == nil {
			loaded.byPath = map[string]*Library{}
		}
		loaded.byPath[c] = lib
		return lib, nil
	}
	if path == "" {
		return nil, fmt.Errorf("%w was found under its usual names %q; give its path by --onnxruntime or %s", ErrNoLibrary, candidates, Env)
	}
	return nil, fmt.Errorf("%w: %w", ErrNoLibrary, errors.Join(tried...))
}

func usualNames() []string {
	switch runtime.GOOS {
	case "darwin":
		return []string{"libonnxruntime.1.dylib", "libonnxruntime.dylib"}
	case "windows":
		return []string{"onnxruntime.dll"}
	}
	return []string{"libonnxruntime.so.1", "libonnxruntime.so"}
}

func load(path string) (*Library, error) {
	getBase, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", path, err)
	}
	// struct OrtApiBase { const OrtApi* (*GetApi)(uint32_t); const char* (*GetVersionString)(); }
	base := call(getBase)
	if base == 0 {
		return nil, fmt.Errorf("load %s: it has no API", path)
	}
	getAPI, getVersion := *at[uintptr](base, 0), *at[uintptr](base, 1)
	lib := &Library{Path: path, Version: text(call(getVersion))}
	api := call(getAPI, apiVersion)
	if api == 0 {
		return nil, fmt.Errorf("load %s: version %s is older than 1.%d, which is the first that can be used", path, lib.Version, apiVersion)
	}
	for i := range lib.fns {
		lib.fns[i] = *at[uintptr](api, i)
	}
	const logErrors = 3 // ORT_LOGGING_LEVEL_ERROR
	name := cString("stationmaster")
	if err := lib.do(fnCreateEnv, logErrors, ptr(&name[0]), ptr(&lib.env)); err != nil {
		return nil, fmt.Errorf("start onnxruntime %s: %w", lib.Version, err)
	}
	const arena, cpuDefault = 1, 0 // OrtArenaAllocator, OrtMemTypeDefault
	if err := lib.do(fnCreateCPUMemoryInfo, arena, cpuDefault, ptr(&lib.memory)); err != nil {
		return nil, fmt.Errorf("start onnxruntime %s: %w", lib.Version, err)
	}
	if err := lib.do(fnGetDefaultAllocator, ptr(&lib.allocator)); err != nil {
		return nil, fmt.Errorf("start onnxruntime %s: %w", lib.Version, err)
	}
	return lib, nil
}

// do calls a function of the API that returns an OrtStatus.
func (l *Library) do(fn int, args ...uintptr) error {
	status := call(l.fns[fn], args...)
	if status == 0 {
		return nil
	}
	defer l.release(fnReleaseStatus, status)
	message := text(call(l.fns[fnGetErrorMessage], status))
	kind := errdef.ErrInternal
	switch int32(call(l.fns[fnGetErrorCode], status)) {
	case codeInvalidArgument, codeInvalidGraph, codeInvalidProtobuf:
		kind = errdef.ErrInvalid
	case codeNotImplemented:
		kind = errdef.ErrUnsupported
	}
	return fmt.Errorf("%w: onnxruntime: %s", kind, message)
}

func (l *Library) release(fn int, handle uintptr) {
	if handle != 0 {
		call(l.fns[fn], handle)
	}
}

// ptr makes a pointer a C argument. The heap doesn't move objects, and sink forces the object
// there; callers keep the object alive by using it after the call.
func ptr[T any](p *T) uintptr {
	sink(unsafe.Pointer(p))
	return uintptr(unsafe.Pointer(p))
}

var escape struct {
	never bool
	p     unsafe.Pointer
}

//go:noinline
func sink(p unsafe.Pointer) {
	if escape.never {
		escape.p = p
	}
}

// at is element i of an array of T in C memory.
func at[T any](address uintptr, i int) *T {
	var zero T
	// The detour over a pointer to the address keeps vet from taking C memory for Go's.
	return (*T)(unsafe.Add(*(*unsafe.Pointer)(unsafe.Pointer(&address)), uintptr(i)*unsafe.Sizeof(zero)))
}

// text copies a C string.
func text(address uintptr) string {
	if address == 0 {
		return ""
	}
	n := 0
	for *at[byte](address, n) != 0 {
		n++
	}
	return string(unsafe.Slice(at[byte](address, 0), n))
}

func cString(s string) []byte { return append([]byte(s), 0) }
