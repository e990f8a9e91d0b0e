//! The types of a call, as `/openapi.json` describes them.

use utoipa::openapi::path::Parameter;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{IntoParams, ToSchema};

/// See the module's text.
#[derive(Default)]
pub struct Types {
    /// The fields of the query.
    pub query: Vec<Parameter>,
    /// The name of the schema of the body.
    pub body: Option<String>,
    /// The name of the schema of the answer.
    pub answer: String,
    /// The schemas of both and of all that they refer to.
    pub schemas: Vec<(String, RefOr<Schema>)>,
}

impl Types {
    pub(crate) fn query<T: IntoParams>(&mut self) {
        self.query = T::into_params(|| None);
    }

    pub(crate) fn body<T: ToSchema>(&mut self) {
        self.body = Some(self.schema::<T>());
    }

    pub(crate) fn answer<T: ToSchema>(&mut self) {
        self.answer = self.schema::<T>();
    }

    fn schema<T: ToSchema>(&mut self) -> String {
        let name = T::name().into_owned();
        self.schemas.push((name.clone(), T::schema()));
        T::schemas(&mut self.schemas);
        name
    }
}
