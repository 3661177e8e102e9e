// Package finder says how package verbs finds the functions of libibverbs and librdmacm. Package fake, which replaces
// these libraries in tests, changes it.
package finder

import "unsafe"

// Function, if it is not nil, is a C function (os_find in shim.h) that finds the functions of the libraries by name. Set
// it before the first device is opened.
var Function unsafe.Pointer
