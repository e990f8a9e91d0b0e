//! The resources, rights and rules of the API, as the state has them.

use lockkeeper_api::access::{Resource, Right, Rule};
use lockkeeper_core::access::{self, Rights};

pub(crate) const RIGHTS: [(Right, Rights); 6] = [
    (Right::Read, Rights::READ),
    (Right::Acquire, Rights::ACQUIRE),
    (Right::Write, Rights::WRITE),
    (Right::Force, Rights::FORCE),
    (Right::Admin, Rights::ADMIN),
    (Right::Backup, Rights::BACKUP),
];

pub(crate) fn resource_in(resource: Resource) -> access::Resource {
    match resource {
        Resource::Locks => access::Resource::Locks,
        Resource::Nodes => access::Resource::Nodes,
        Resource::Gates => access::Resource::Gates,
        Resource::Sessions => access::Resource::Sessions,
        Resource::Cluster => access::Resource::Cluster,
        Resource::Rates => access::Resource::Rates,
    }
}

fn resource_out(resource: access::Resource) -> Resource {
    match resource {
        access::Resource::Locks => Resource::Locks,
        access::Resource::Nodes => Resource::Nodes,
        access::Resource::Gates => Resource::Gates,
        access::Resource::Sessions => Resource::Sessions,
        access::Resource::Cluster => Resource::Cluster,
        access::Resource::Rates => Resource::Rates,
    }
}

pub(crate) fn rights_in(rights: &[Right]) -> Rights {
    let asked = RIGHTS.iter().filter(|(right, _)| rights.contains(right));
    asked.fold(Rights::default(), |all, (_, bit)| all.and(*bit))
}

pub(crate) fn rule_out(rule: &access::Rule) -> Rule {
    let held = RIGHTS.iter().filter(|(_, bit)| rule.rights.has_any(*bit));
    Rule {
        resource: resource_out(rule.resource),
        prefix: rule.prefix.to_string(),
        rights: held.map(|(right, _)| *right).collect(),
    }
}

pub(crate) fn rule_in(rule: Rule) -> access::Rule {
    access::Rule { resource: resource_in(rule.resource), prefix: rule.prefix.into(), rights: rights_in(&rule.rights) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_the_same_inside_and_outside() {
        use Resource::{Cluster, Gates, Locks, Nodes, Rates, Sessions};
        for resource in [Locks, Nodes, Gates, Sessions, Cluster, Rates] {
            let rights = vec![Right::Read, Right::Acquire, Right::Write, Right::Force, Right::Admin, Right::Backup];
            let rule = Rule { resource, prefix: "p".into(), rights };
            assert_eq!(rule_out(&rule_in(rule.clone())), rule);
            assert_eq!(resource_in(resource).to_string(), resource.to_string());
        }
    }
}
