/** Apache Curator against a cluster: one line for each check, then the count. INTEROP_* says where the cluster is. */
public final class Interop {
    private Interop() {}

    /** The argument: only checks whose name has it. */
    public static void main(String[] arguments) {
        if (arguments.length > 0) {
            Harness.only = arguments[0];
        }
        Locks.all();
        Recipes.all();
        Nodes.all();
        Trouble.all();
        // From the name of the library's file: its manifest has no version.
        String version = System.getProperty("java.class.path").replaceAll(".*curator-recipes-([0-9.]+)\\.jar.*", "$1");
        // Clients may leave threads running.
        System.exit(Harness.sum(version) ? 0 : 1);
    }
}
