//! `certs`: the commands that make certificates.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `certs`
#[derive(Debug, Args)]
#[command(after_help = "\
The files are PEM. DIR has authority.pem, which nodes and clients trust, and authority.key, which signs certificates and
belongs on no node and no client. Keys are readable by their owner only. See docs/security.md.

Example: three nodes and a client
  lockkeeper certs init --dir certs --cluster orders
  lockkeeper certs node --dir certs --id 1 --host 10.0.0.1 --host lock-1.example
  lockkeeper certs node --dir certs --id 2 --host 10.0.0.2 --host lock-2.example
  lockkeeper certs node --dir certs --id 3 --host 10.0.0.3 --host lock-3.example
  lockkeeper certs client --dir certs --name billing")]
pub(crate) struct Certs {
    #[command(subcommand)]
    pub(crate) command: CertsCommand,
}

/// The commands of `certs`.
#[derive(Debug, Subcommand)]
pub(crate) enum CertsCommand {
    /// Make the private certificate authority of a cluster: authority.pem and authority.key
    Init(NewAuthority),
    /// Make the certificate of a node, for all its listeners: nodeID.pem and nodeID.key
    Node(NodeCertificate),
    /// Make the certificate of a client: client-NAME.pem and client-NAME.key
    Client(ClientCertificate),
}

/// `certs init`
#[derive(Debug, Args)]
pub(crate) struct NewAuthority {
    /// Directory for the files; made if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// The cluster, as in `cluster.id` of its configuration
    #[arg(long, value_name = "NAME", default_value = "local")]
    pub(crate) cluster: String,
    /// Days until it expires
    #[arg(long, value_name = "N", default_value_t = 3650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub(crate) days: u32,
    /// Replace an authority; certificates that it has issued stay valid for whoever still trusts it
    #[arg(long)]
    pub(crate) force: bool,
}

/// `certs node`
#[derive(Debug, Args)]
pub(crate) struct NodeCertificate {
    /// Directory of the authority
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// The cluster [default: the authority's, which it must be]
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// The node, as in `cluster.node` of its configuration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) id: u32,
    /// Host names and addresses under which clients reach the node
    #[arg(long = "host", value_name = "HOST", required = true, num_args = 1.., value_delimiter = ',')]
    pub(crate) hosts: Vec<String>,
    /// Days until it expires, but not after its authority
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub(crate) days: u32,
    /// Replace the node's certificate and key
    #[arg(long)]
    pub(crate) force: bool,
}

/// `certs client`
#[derive(Debug, Args)]
pub(crate) struct ClientCertificate {
    /// Directory of the authority
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// The cluster [default: the authority's, which it must be]
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// Who the client is
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// Days until it expires, but not after its authority
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub(crate) days: u32,
    /// Replace the client's certificate and key
    #[arg(long)]
    pub(crate) force: bool,
}
