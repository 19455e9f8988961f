// The Kubernetes provider plugin of Pulumi, built from its published Go module.
//
// The module's own main embeds files that only its release build generates. This one reads the
// same two documents from beside the executable, where the tool chain installs them.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

func readBeside(exe, name string) []byte {
	data, err := os.ReadFile(filepath.Join(filepath.Dir(exe), name))
	if err != nil {
		fmt.Fprintf(os.Stderr, "pulumi-resource-kubernetes: %v: reinstall it with `dsec tools install pulumi-kubernetes`\n", err)
		os.Exit(1)
	}
	return data
}

func main() {
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "pulumi-resource-kubernetes: cannot find own executable: %v\n", err)
		os.Exit(1)
	}
	provider.Serve("kubernetes", version.Version,
		readBeside(exe, "schema.json"), readBeside(exe, "terraform-mapping.json"))
}
