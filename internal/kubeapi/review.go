package kubeapi

import (
	"context"
	"errors"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// whoAmI answers `kubectl auth whoami`.
type whoAmI struct{}

func (whoAmI) New() runtime.Object     { return &authenticationv1.SelfSubjectReview{} }
func (whoAmI) Destroy()                {}
func (whoAmI) NamespaceScoped() bool   { return false }
func (whoAmI) GetSingularName() string { return "selfsubjectreview" }

// Create returns who asks.
func (whoAmI) Create(ctx context.Context, _ runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("the request has no user"))
	}
	info := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[k] = v
	}
	return &authenticationv1.SelfSubjectReview{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.Now()},
		Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: info},
	}, nil
}

// canI answers `kubectl auth can-i`.
type canI struct{}

func (canI) New() runtime.Object     { return &authorizationv1.SelfSubjectAccessReview{} }
func (canI) Destroy()                {}
func (canI) NamespaceScoped() bool   { return false }
func (canI) GetSingularName() string { return "selfsubjectaccessreview" }

// Create returns whether the one who asks may do what is asked about: an administrator
// everything, nobody else anything.
func (canI) Create(ctx context.Context, obj runtime.Object, _ rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	review, ok := obj.(*authorizationv1.SelfSubjectAccessReview)
	if !ok {
		return nil, apierrors.NewBadRequest("not a SelfSubjectAccessReview")
	}
	u, _ := request.UserFrom(ctx)
	review = review.DeepCopy()
	review.Status = authorizationv1.SubjectAccessReviewStatus{
		Allowed: u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup),
	}
	return review, nil
}
