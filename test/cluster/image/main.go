// Command image builds a one-layer image without a base from files: a static program, or data
// such as a model.
//
//	image -o model.tar -name localhost:5000/model:1 models/model.onnx=./model.onnx
//	image -o echo.tar -name localhost:5000/echo:1 -entrypoint /echo -user 65532 echo=bin/echo
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"stationmaster.dev/stationmaster/test/cluster"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run() error {
	var image cluster.Image
	out := flag.String("o", "", "`tar` to write, in the OCI layout")
	flag.StringVar(&image.Name, "name", "", "`reference` of the image")
	flag.StringVar(&image.User, "user", "", "user, or user:group, that it runs as")
	entrypoint := flag.String("entrypoint", "", "what it runs, with blanks between the arguments")
	flag.Parse()
	if *out == "" || image.Name == "" {
		return errors.New("-o and -name are needed")
	}
	image.Entrypoint = strings.Fields(*entrypoint)
	for _, arg := range flag.Args() {
		path, from, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q isn't PATH-IN-IMAGE=FILE", arg)
		}
		image.Files = append(image.Files, cluster.File{Path: path, From: from})
	}
	return cluster.BuildImage(*out, image)
}
