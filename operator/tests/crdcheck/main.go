package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	sv "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// What a Kubernetes API server of that version does with a CRD, without the server: `go build` here, then
// HEADRACE_CRDCHECK=./crdcheck pytest operator/tests/test_crds.py.
//
// crdcheck CRD.yaml [case.json...]: a case is {old: object or null, new: object}; prints what is refused.
func main() {
	raw, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	var crd v1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(raw, &crd); err != nil {
		fmt.Println(os.Args[1], "YAML:", err)
		os.Exit(1)
	}
	v1.SetDefaults_CustomResourceDefinition(&crd)
	v1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	var internal apiextensions.CustomResourceDefinition
	if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&crd, &internal, nil); err != nil {
		panic(err)
	}
	internal.Status.StoredVersions = []string{"v1alpha1"}
	bad := false
	for _, e := range validation.ValidateCustomResourceDefinition(context.Background(), &internal) {
		fmt.Println(os.Args[1], e)
		bad = true
	}
	if bad {
		os.Exit(1)
	}
	props := internal.Spec.Validation
	if props == nil {
		props = internal.Spec.Versions[0].Schema
	}
	s, err := schema.NewStructural(props.OpenAPIV3Schema)
	if err != nil {
		panic(err)
	}
	v, _, err := sv.NewSchemaValidator(props.OpenAPIV3Schema)
	if err != nil {
		panic(err)
	}
	celv := cel.NewValidator(s, true, celconfig.PerCallLimit)
	for _, f := range os.Args[2:] {
		raw, _ := os.ReadFile(f)
		all := map[string]interface{}{}
		if err := utiljson.Unmarshal(raw, &all); err != nil {
			panic(err)
		}
		var c struct{ Old, New map[string]interface{} }
		c.New = all["new"].(map[string]interface{})
		c.Old, _ = all["old"].(map[string]interface{})
		defaulting.Default(c.New, s)
		var old interface{}
		if c.Old != nil {
			defaulting.Default(c.Old, s)
			old = c.Old
		}
		errs := sv.ValidateCustomResource(nil, c.New, v)
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s, c.New)...)
		if len(errs) == 0 {
			more, _ := celv.Validate(context.Background(), field.NewPath(""), s, c.New, old, celconfig.RuntimeCELCostBudget)
			errs = append(errs, more...)
		}
		fmt.Println(f, len(errs), errs.ToAggregate())
	}
	fmt.Println(os.Args[1], "ok")
}
