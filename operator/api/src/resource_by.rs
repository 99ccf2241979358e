//! Types that `kube` treats as another resource, because they contain it or a part of it.

/// The items of [`kube::Resource`] that name a kind, taken from another resource. With the name of
/// a field of type `ObjectMeta` also those that return the metadata.
#[macro_export]
macro_rules! resource_names {
    ($known:ty, $metadata:ident) => {
        $crate::resource_names!($known);

        fn meta(&self) -> &::kube::api::ObjectMeta {
            &self.$metadata
        }

        fn meta_mut(&mut self) -> &mut ::kube::api::ObjectMeta {
            &mut self.$metadata
        }
    };
    ($known:ty) => {
        type DynamicType = <$known as ::kube::Resource>::DynamicType;
        type Scope = <$known as ::kube::Resource>::Scope;

        fn kind(dt: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
            <$known as ::kube::Resource>::kind(dt)
        }

        fn group(dt: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
            <$known as ::kube::Resource>::group(dt)
        }

        fn version(dt: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
            <$known as ::kube::Resource>::version(dt)
        }

        fn plural(dt: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
            <$known as ::kube::Resource>::plural(dt)
        }
    };
}

/// Implements [`kube::Resource`] for a type through one of its
/// fields: `resource_by!(LenientJob, TrainingJob, job)`.
#[macro_export]
macro_rules! resource_by {
    ($type:ty, $known:ty, $field:tt) => {
        impl ::kube::Resource for $type {
            $crate::resource_names!($known);

            fn meta(&self) -> &::kube::api::ObjectMeta {
                ::kube::Resource::meta(&self.$field)
            }

            fn meta_mut(&mut self) -> &mut ::kube::api::ObjectMeta {
                ::kube::Resource::meta_mut(&mut self.$field)
            }
        }
    };
}
